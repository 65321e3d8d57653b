//! From the loader to long mode: PVH note and multiboot1 header, one 32-bit entry
//! for both, an identity map of the first 4 GiB, a flat GDT, a stack for each CPU; and
//! the trampoline by which the other CPUs get from a start-up IPI to the same mode.
//!
//! Guarantees: [`crate::begin`] runs in 64-bit mode with interrupts off and the
//! loader's information block, whichever kind, in its argument; [`crate::smp::begin`]
//! runs so on each further CPU, on the stack of its APIC id.

core::arch::global_asm!(
    r#"
# Sets EFER.LME, and leaves CR0 in EAX.
.macro enable_long_mode
    movl $0xC0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
.endm

.macro load_segments
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    xorl %eax, %eax
    movl %eax, %fs
    movl %eax, %gs
.endm

.section .multiboot, "a", @progbits
.balign 4
multiboot_header:
    .long 0x1BADB002
    .long 0x00010002                    # address fields valid; memory map wanted
    .long -(0x1BADB002 + 0x00010002)
    .long multiboot_header, load_start, load_end, bss_end, start

.section .note.pvh, "a", @note
.balign 4
    .long 4, 4, 18                      # XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long start

.section .text.start, "ax", @progbits
.code32
.global start
start:
    cli
    cld
    movl $stacks + 0x10000, %esp
    movl %ebx, %ebp
    movl $page_directories, %edi        # 2048 pages of 2 MiB, one to one
    movl $0x83, %eax
    movl $2048, %ecx
1:  movl %eax, (%edi)
    movl $0, 4(%edi)
    addl $0x200000, %eax
    addl $8, %edi
    decl %ecx
    jnz 1b
    movl $page_directories + 0x0003, pdpt
    movl $page_directories + 0x1003, pdpt + 8
    movl $page_directories + 0x2003, pdpt + 16
    movl $page_directories + 0x3003, pdpt + 24
    movl $pdpt + 3, pml4
    movl $pml4, %eax
    movl %eax, %cr3
    movl %cr4, %eax
    orl $0x20, %eax                     # PAE
    movl %eax, %cr4
    enable_long_mode
    orl $0x80010001, %eax               # PG, WP, PE
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmp $0x08, $start64

.code64
start64:
    load_segments
    movl %ebp, %edi
    xorl %ebp, %ebp
    call kernel_main
2:  hlt
    jmp 2b

# Copied to the page that a start-up IPI names. From real mode straight to long mode:
# the GDT has no 32-bit code segment.
.code16
.global trampoline, trampoline_end
trampoline:
    cli
    cld
    xorl %esi, %esi
    movw %cs, %si
    movw %si, %ds
    lgdtl trampoline_gdt - trampoline
    movl $0x20, %eax                    # PAE
    movl %eax, %cr4
    movl $pml4, %eax
    movl %eax, %cr3
    enable_long_mode
    andl $0x9FFFFFFF, %eax              # caches on
    orl $0x80010001, %eax               # PG, WP, PE
    movl %eax, %cr0
    ljmpl $0x08, $begin64
trampoline_gdt:
    .word 23
    .long gdt
trampoline_end:

.code64
begin64:
    load_segments
    movl $0x0B, %eax                    # EDX: the x2APIC id
    xorl %ecx, %ecx
    cpuid
    cmpl ${cpus}, %edx
    jae 3f
    movl %edx, %edi
    leal 1(%rdx), %eax
    shll $16, %eax
    addl $stacks, %eax
    movl %eax, %esp
    xorl %ebp, %ebp
    call begin
3:  cli
    hlt
    jmp 3b

.section .data.gdt, "aw", @progbits
.balign 8
gdt:
    .quad 0
    .quad 0x00AF9B000000FFFF            # 0x08: 64-bit code
    .quad 0x00CF93000000FFFF            # 0x10: data
gdt_pointer:
    .word . - gdt - 1
    .long gdt

.section .bss.boot, "aw", @nobits
.balign 4096
.global pml4
pml4: .skip 4096
.global pdpt
pdpt: .skip 4096
page_directories: .skip 4 * 4096
.balign 4096
.global stacks
stacks: .skip {cpus} * 65536
.text
"#,
    cpus = const crate::smp::MAX,
    options(att_syntax)
);

/// Called by the assembly above.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(info: u64) -> ! {
    crate::begin(info)
}

/// Called by the trampoline with the CPU's APIC id and the code segment it started with.
#[unsafe(no_mangle)]
extern "C" fn begin(id: u32, segment: u64) -> ! {
    crate::smp::begin(id, segment)
}
