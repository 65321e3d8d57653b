# One entry per vector, 16 bytes each, that pushes an error code where the CPU
# doesn't, and the vector; `common.s` does the rest.

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
