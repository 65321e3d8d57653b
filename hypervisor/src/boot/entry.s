# From three loaders' entries to Rust in 64-bit mode, with the first 4 GiB mapped
# one to one. The image runs wherever it lies below 4 GiB: until its relocations
# are done, nothing here is addressed but relative to where the code is.
#
# Common to all: ESI says who entered, EBX where that loader's structure is.

# Each note: sizes of name and value, type, name, value. The values are addresses as linked.
.section .note.exitless, "a", @note
    .balign 4
    .long 4, 4, 18          # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_entry_linked
    .balign 4
    .long 9, 4, {note}
    .asciz "Exitless"
    .balign 4
    .long uefi_entry_linked

.section .text.boot, "ax"
# Multiboot2 3.1: in the first 32 KiB of the file. The screen isn't asked for: GRUB
# would then leave text mode, whatever it was told.
.balign 8
multiboot2_header:
    .long 0xE85250D6, 0, multiboot2_header_end - multiboot2_header
    .long -(0xE85250D6 + multiboot2_header_end - multiboot2_header)
    .short 3, 0             # entry address, in 32-bit protected mode
    .long 12, multiboot2_entry_linked
    .balign 8
    .short 6, 0             # modules at pages' starts
    .long 8
    .balign 8
    .short 10, 0            # to be loaded at a multiple of 2 MiB, as low as may be
    .long 24, 0x200000, 0xFFFFFFFF, 0x200000, 1
    .balign 8
    .short 0, 0
    .long 8
multiboot2_header_end:

.code32
# Xen's PVH: EBX = start info, and nothing else is defined.
.global pvh_entry
pvh_entry:
    movl ${pvh}, %esi
    jmp 1f

# Multiboot2 3.3: EAX = magic number, EBX = information.
.global multiboot2_entry
multiboot2_entry:
    movl %eax, %esi

1:  cli
    cld
    # A no-op by which the counting plugin (bench/plugin) knows that this has begun.
    .byte 0x0f, 0x1f, 0x84, 0x00
    .long 0x45580011
    # Only a call tells where this code is, and only EBX points to memory for it to
    # use: the first word there, which is put back.
    movl (%ebx), %edi
    leal 4(%ebx), %esp
    call here
here:
    popl %ebp
    movl %edi, (%ebx)

# Paging is off; EBP = where `here` is.
to_long_mode:
    leal boot_stack_top - here(%ebp), %esp
    movl %ebx, %edi         # CPUID overwrites EBX

    # Long mode (CPUID 8000_0001h EDX[29]), or a sentence and the end.
    movl $0x80000000, %eax
    cpuid
    cmpl $0x80000001, %eax
    jb no_long_mode
    movl $0x80000001, %eax
    cpuid
    btl $29, %edx
    jnc no_long_mode

    # PML4[0] -> PDPT[0..4] -> 2048 pages of 2 MiB, present and writable.
    leal boot_pdpt + 3 - here(%ebp), %eax
    movl %eax, boot_pml4 - here(%ebp)
    leal boot_pds + 3 - here(%ebp), %eax
    leal boot_pdpt - here(%ebp), %edx
    movl $4, %ecx
2:  movl %eax, (%edx)
    addl $4096, %eax
    addl $8, %edx
    loop 2b
    movl $0x83, %eax        # present, writable, page size
    leal boot_pds - here(%ebp), %edx
    movl $2048, %ecx
3:  movl %eax, (%edx)
    addl $0x200000, %eax
    addl $8, %edx
    loop 3b

    movl $(1 << 5), %eax    # PAE, and nothing that firmware had on
    movl %eax, %cr4
    leal boot_pml4 - here(%ebp), %eax
    movl %eax, %cr3
    movl $0xC0000080, %ecx  # EFER
    rdmsr
    orl $(1 << 8), %eax     # LME
    wrmsr
    movl %cr0, %eax
    orl $0x80010001, %eax   # PG, WP, PE
    movl %eax, %cr0
    leal boot_gdt - here(%ebp), %eax
    movl %eax, boot_gdt_pointer + 2 - here(%ebp)
    lgdtl boot_gdt_pointer - here(%ebp)
    leal long_mode - here(%ebp), %eax
    pushl $0x08
    pushl %eax
    lretl

no_long_mode:
    leal no_long_mode_text - here(%ebp), %esi
4:  movw $(0x3F8 + 5), %dx
    movl $100000, %ecx      # a UART that isn't there is not waited for
5:  inb %dx, %al
    testb $0x20, %al
    loopz 5b
    lodsb
    testb %al, %al
    jz 6f
    movw $0x3F8, %dx
    outb %al, %dx
    jmp 4b
6:  movw ${exit_port}, %dx
    movl ${refused}, %eax
    outl %eax, %dx
7:  cli
    hlt
    jmp 7b

.code64
# Our UEFI loader: 64-bit mode on its page tables, RDI = hand-over below 4 GiB. The
# way goes through 32-bit mode, so that nothing of the firmware's paging is left,
# five levels of it among them.
.global uefi_entry
uefi_entry:
    cli
    cld
    leaq boot_stack_top(%rip), %rsp
    leaq boot_gdt(%rip), %rax
    movq %rax, boot_gdt_pointer + 2(%rip)
    lgdtq boot_gdt_pointer(%rip)
    leaq here(%rip), %rbp
    movl ${uefi}, %esi
    movl %edi, %ebx
    movq %cr4, %rax
    btrq $17, %rax          # PCIDE: paging can't go off with it
    movq %rax, %cr4
    leaq 8f(%rip), %rax
    pushq $0x18
    pushq %rax
    lretq
.code32
8:  movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl %cr0, %eax
    andl $0x7FFFFFFF, %eax  # no paging: that is the way out of long mode
    movl %eax, %cr0
    movl $0xC0000080, %ecx
    rdmsr
    andl $~(1 << 8), %eax   # no LME
    wrmsr
    jmp to_long_mode

.code64
long_mode:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    xorl %eax, %eax
    movw %ax, %fs
    movw %ax, %gs
    leaq boot_stack_top(%rip), %rsp
    xorl %ebp, %ebp

    # What the image was moved by is added to each pointer in it. They are listed as
    # SHT_RELR has it (System V ABI, 4.17): an even word is a pointer's address as
    # linked; the bits of an odd one, from bit 1 on, say which of the 63 words that
    # follow are pointers.
    leaq image_start(%rip), %rax
    subq $image_linked, %rax
    leaq relocations_start(%rip), %rcx
    leaq relocations_end(%rip), %rdx
9:  cmpq %rdx, %rcx
    jae 4f
    movq (%rcx), %r8
    addq $8, %rcx
    testb $1, %r8b
    jnz 1f
    leaq (%r8, %rax), %r9
    addq %rax, (%r9)
    addq $8, %r9
    jmp 9b
1:  movq %r9, %r10
2:  shrq $1, %r8
    jz 3f
    testb $1, %r8b
    jz 5f
    addq %rax, (%r10)
5:  addq $8, %r10
    jmp 2b
3:  addq $(63 * 8), %r9
    jmp 9b

4:  movl %edi, %edi         # where the loader's structure is; clears the upper half
    movl %esi, %esi         # who entered
    call {boot}
    ud2

.section .rodata.boot, "a"
no_long_mode_text:
    .asciz "exitless: this CPU has no long mode; a 64-bit AMD CPU with SVM is needed\n"

.section .data.boot, "aw"
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF    # 0x08: 64-bit code
    .quad 0x00CF93000000FFFF    # 0x10: data
    .quad 0x00CF9B000000FFFF    # 0x18: 32-bit code
boot_gdt_pointer:
    .word 31
    .quad 0                     # filled in

.section .bss.boot, "aw", @nobits
.balign 4096
.global boot_pml4
boot_pml4:  .skip 4096
.global boot_pdpt
boot_pdpt:  .skip 4096
boot_pds:   .skip 4 * 4096
.text
