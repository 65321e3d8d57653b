# One entry per vector, 16 bytes each, that pushes an error code where the CPU
# doesn't, and the vector; then the registers are saved and Rust handles it.

.section .text.interrupts, "ax"
.balign 16
.global interrupt_stubs
interrupt_stubs:
.set vector, 0
.rept 256
    .balign 16, 0xCC
    # Exceptions with an error code: 8, 10 to 14, 17, 21, 29, 30 (APM 2 table 8-1).
    .if !(vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21 || vector == 29 || vector == 30)
    pushq $0
    .endif
    pushq $vector
    jmp interrupt_common
    .set vector, vector + 1
.endr

.balign 16
interrupt_common:
    pushq %rax
    pushq %rbx
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %rbp
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
    # The CPU aligned the stack to 16 and 22 words were pushed, an even number.
    movq %rsp, %rdi
    call {handle}
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rbp
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rbx
    popq %rax
    addq $16, %rsp
    iretq
.text
