# Entries for the vectors below 32 on a core to which interrupts of a guest may still come. An
# interrupt is in service when its handler begins, and an exception isn't. The first is completed
# and forgotten; the second goes on where the host's own table leads, with the stack as it came.
# It is the ISR's lowest MSR that says it (APM 2 16.11; SDM 3 12.12.1: 810h, EOI is 80Bh).

.section .text.interrupts, "ax"
.balign 64
.global interrupt_tolerant_stubs
interrupt_tolerant_stubs:
.set vector, 0
.rept 32
    .balign 64, 0xCC
    pushq %rax
    pushq %rcx
    pushq %rdx
    movl $0x810, %ecx
    rdmsr
    btl $vector, %eax
    jc 1f
    popq %rdx
    popq %rcx
    popq %rax
    jmp interrupt_stubs + 16 * vector
1:
    movl $0x80B, %ecx
    xorl %eax, %eax
    xorl %edx, %edx
    wrmsr
    popq %rdx
    popq %rcx
    popq %rax
    iretq
    .set vector, vector + 1
.endr
