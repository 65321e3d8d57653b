# Where a core wakes up after SIPI: real mode, at the start of a page below 1 MiB to
# which this is copied. Straight to long mode on the host's tables. The addresses
# that it needs are filled into the copy.

.section .rodata.trampoline, "a"
.balign 16
.global trampoline_start, trampoline_end, trampoline_slots
.code16
trampoline_start:
    cli
    cld
    movw %cs, %ax
    movw %ax, %ds
    lgdtl trampoline_gdt_pointer - trampoline_start
    movl $(1 << 5), %eax                    # CR4.PAE
    movl %eax, %cr4
    movl trampoline_cr3 - trampoline_start, %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx                  # EFER.LME and NXE
    rdmsr
    orl $((1 << 8) | (1 << 11)), %eax
    wrmsr
    movl $0x80010031, %eax                  # CR0: PG, WP, NE, ET, PE; caches on
    movl %eax, %cr0
    ljmpl *(trampoline_far - trampoline_start)
.code64
trampoline_long:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %eax, %eax
    movw %ax, %fs
    movw %ax, %gs
    jmpq *trampoline_entry(%rip)

.balign 8
trampoline_gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF                # 0x08: 64-bit code
    .quad 0x00CF93000000FFFF                # 0x10: data

# `Slots` in startup.rs. The offsets in the page that stand here become addresses.
.balign 8
trampoline_slots:
trampoline_entry: .quad 0
trampoline_cr3: .long 0
trampoline_far: .long trampoline_long - trampoline_start
    .word 0x08
trampoline_gdt_pointer:
    .word 23
    .long trampoline_gdt - trampoline_start
trampoline_end:

.text
.global ap_entry
ap_entry:
    movq {stack}(%rip), %rsp
    xorl %ebp, %ebp
    call {main}
    ud2
