# From the PVH entry (32-bit protected mode, no paging, interrupts off, EBX =
# start info) to 64-bit code with the first 4 GiB mapped one to one.

.section .note.Xen, "a", @note
    .balign 4
    .long 4, 4, 18          # name size, value size, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_entry

.section .text.boot, "ax"
.code32
.global pvh_entry
pvh_entry:
    cld
    mov esp, offset boot_stack_top

    # Long mode (CPUID 8000_0001h EDX[29]), or a sentence and the end.
    mov edi, ebx            # CPUID overwrites EBX
    mov eax, 0x80000000
    cpuid
    cmp eax, 0x80000001
    jb 8f
    mov eax, 0x80000001
    cpuid
    bt edx, 29
    jnc 8f

    # PML4[0] -> PDPT[0..4] -> 2048 pages of 2 MiB, present and writable.
    mov eax, offset boot_pdpt + 3
    mov [boot_pml4], eax
    mov eax, offset boot_pds + 3
    mov edx, offset boot_pdpt
2:  mov [edx], eax
    add eax, 4096
    add edx, 8
    cmp edx, offset boot_pdpt + 32
    jb 2b
    mov eax, 0x83           # present, writable, page size
    mov edx, offset boot_pds
3:  mov [edx], eax
    add eax, 0x200000
    add edx, 8
    cmp edx, offset boot_pds + 4 * 4096
    jb 3b

    mov eax, cr4
    or eax, 1 << 5          # PAE
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xC0000080     # EFER
    rdmsr
    or eax, 1 << 8          # LME
    wrmsr
    mov eax, cr0
    or eax, 0x80010001      # PG, WP, PE
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    # "ljmp 0x08, long_mode" by hand: the assembler has no Intel form of it.
    .byte 0xEA
    .long long_mode
    .word 0x08

8:  mov esi, offset no_long_mode
9:  mov dx, 0x3F8 + 5
1:  in al, dx
    test al, 0x20
    jz 1b
    lodsb
    test al, al
    jz 2f
    mov dx, 0x3F8
    out dx, al
    jmp 9b
2:  mov dx, 0xF4
    mov eax, 0x12
    out dx, eax
3:  cli
    hlt
    jmp 3b

.code64
long_mode:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    mov rsp, offset boot_stack_top
    xor ebp, ebp
    mov edi, edi            # start info; clears the upper half
    call {boot}
    ud2

.section .rodata.boot, "a"
no_long_mode: .asciz "exitless: this CPU has no long mode; a 64-bit AMD CPU with SVM is needed\n"

.section .data.boot, "aw"
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF    # 0x08: 64-bit code
    .quad 0x00CF93000000FFFF    # 0x10: data
boot_gdt_pointer:
    .word 23
    .quad boot_gdt

.section .bss.boot, "aw", @nobits
.balign 4096
.global boot_pml4
boot_pml4:  .skip 4096
.global boot_pdpt
boot_pdpt:  .skip 4096
boot_pds:   .skip 4 * 4096
.text
