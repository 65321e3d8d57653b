/*
 * A machine whose every instruction is known, to check the counting plugin with:
 * boots by PVH, runs one window in host mode and one in a guest of 100 exits, and
 * ends with debug-exit value 0x10. `cli/src/bench/plugin_check.rs` has the counts.
 *
 *   gcc -m32 -nostdlib -static -no-pie -Wl,-Ttext=0x100000,--build-id=none -o check check.S
 */
        .macro  MARK imm
        .byte   0x0f, 0x1f, 0x84, 0x00
        .long   \imm
        .endm

        .section .note.Xen, "a", @note
        .long   4, 4, 18                /* XEN_ELFNOTE_PHYS32_ENTRY */
        .asciz  "Xen"
        .long   _start

        .text
        .code32
        .globl  _start
_start: cli
        cld
        /* Host mode: 1 + 1 + 2,000 + 1,000 x (port read, MMIO read, dec, jnz) + 1 = 6,003. */
        MARK    0x45580001
        mov     $1000, %ecx
1:      dec     %ecx
        jnz     1b
        mov     $1000, %ecx
2:      in      $0x71, %al
        mov     0xfee00030, %eax
        dec     %ecx
        jnz     2b
        MARK    0x45580002

        /* EFER.SVME, VM_HSAVE_PA (APM 2, 15.4 and 15.30.4). */
        mov     $0xc0000080, %ecx
        rdmsr
        or      $0x1000, %eax
        wrmsr
        mov     $0xc0010117, %ecx
        mov     $save_area, %eax
        xor     %edx, %edx
        wrmsr

        mov     $vmcb, %eax
3:      .byte   0x0f, 0x01, 0xd8        /* vmrun */
        MARK    0x45580010
        cmpl    $0x81, vmcb + 0x70      /* VMMCALL: step over it and go on; else the end */
        jne     4f
        addl    $3, vmcb + 0x578
        jmp     3b
4:      mov     $0x10, %eax
        out     %eax, $0xf4
5:      hlt
        jmp     5b

        /* Guest: 1 + 1 + 100 x (1 + 2,000 + 1 + 2) = 200,402; each exit costs the host 6. */
guest:  MARK    0x45580001
        mov     $100, %ebx
6:      mov     $1000, %ecx
7:      dec     %ecx
        jnz     7b
        .byte   0x0f, 0x01, 0xd9        /* vmmcall */
        dec     %ebx
        jnz     6b
        MARK    0x45580002
        hlt

        .data
        .macro  SEGMENT at selector attributes
        .org    vmcb + \at
        .word   \selector, \attributes
        .long   0xffffffff
        .quad   0
        .endm
        .balign 4096
save_area:
        .skip   4096
vmcb:   /* APM 2, appendix B */
        .org    vmcb + 0x0c
        .long   1 << 24                 /* intercept HLT */
        .long   3                       /* VMRUN, VMMCALL */
        .org    vmcb + 0x58
        .long   1                       /* ASID */
        SEGMENT 0x400 0x10 0xc93        /* ES */
        SEGMENT 0x410 0x08 0xc9b        /* CS */
        SEGMENT 0x420 0x10 0xc93        /* SS */
        SEGMENT 0x430 0x10 0xc93        /* DS */
        .org    vmcb + 0x4d0
        .quad   0x1000                  /* EFER.SVME */
        .org    vmcb + 0x558
        .quad   0x11                    /* CR0: PE, ET */
        .quad   0x400                   /* DR7 */
        .quad   0xffff0ff0              /* DR6 */
        .quad   2                       /* RFLAGS */
        .long   guest, 0                /* RIP */
        .org    vmcb + 4096
        .section .note.GNU-stack, "", @progbits
