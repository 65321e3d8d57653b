//! What the guests of this kernel execute.

core::arch::global_asm!(
    r#"
.balign 16
.global svm_cpuids, svm_hypercall, svm_halt, svm_reads_msr, svm_writes_port, svm_uses_port
.global svm_times, svm_identifies, svm_undefined, svm_spins, svm_touches, svm_stores, svm_jumps
.global svm_saves, svm_loads, svm_flags, svm_arrives, svm_watches, svm_refuses
.global svm_writes_msr, svm_sends, svm_loads_cr0, svm_loads_status, svm_sets_states, svm_prefixed
.global svm_takes, svm_opens, svm_prefers, svm_counts, svm_monitors, svm_odd, svm_adds, svm_moves, svm_writes_string, svm_reads_string
.global svm_gates, svm_closes, svm_lets
svm_cpuids:
    lea rcx, [rdx + 1]
    cpuid
    jmp svm_cpuids
svm_hypercall:
    vmmcall
    hlt
svm_halt:
    hlt
    jmp svm_halt
svm_reads_msr:
    rdmsr
    vmmcall
svm_writes_port:
    mov eax, 0x41
    out 0x80, al
    vmmcall
svm_uses_port:
    mov eax, esi
    out dx, al
    mov rax, rdi
    in al, dx
    mov rcx, rax
    vmmcall
svm_times:
    in eax, dx
    mov ecx, eax
    in eax, dx
    vmmcall
svm_identifies:
    wbinvd
    xor ecx, ecx
    cpuid
    vmmcall
svm_undefined:
    ud2
svm_spins:
    pause
    jmp svm_spins
# Loads from RSI, stores RDI there, tells.
svm_touches:
    mov rcx, [rsi]
    vmmcall
svm_stores:
    mov [rsi], rdi
    vmmcall
svm_jumps:
    jmp rsi
svm_watches:
    mov rcx, [rsi]
    cmp ecx, -1
    je svm_hypercall
    mov [rdi], rcx
    jmp svm_watches
# By an exception.
svm_refuses:
    mov edx, 0xBAD
    vmmcall
# With a block at RSI.
svm_saves:
    mov rax, rsi
    vmsave rax
    vmmcall
svm_loads:
    mov rax, rsi
    vmload rax
    vmmcall
# By an interrupt.
svm_arrives:
    mov rcx, [rsp]
    vmmcall
svm_flags:
    clgi
    vmmcall
    stgi
    vmmcall
svm_writes_msr:
    wrmsr
    rdmsr
    vmmcall
svm_sends:
    wrmsr
    jmp svm_spins
svm_loads_cr0:
    mov cr0, rdi
    mov rcx, cr0
    vmmcall
svm_loads_status:
    lmsw [rsi]
    mov rcx, cr0
    vmmcall
svm_sets_states:
    xor ecx, ecx
    xor edx, edx
    xsetbv
    xgetbv
    mov ecx, eax
    vmmcall
svm_prefixed:
    xor ecx, ecx
    .byte 0x48
    cpuid
    vmmcall
# By an interrupt: counts it.
svm_takes:
    inc rdi
    iretq
svm_opens:
    sti
    nop
    vmmcall
# CR8 from RCX and to RDX, told; with IF; and with CR8 0.
svm_prefers:
    mov cr8, rcx
    mov rdx, cr8
    vmmcall
    sti
    nop
    cli
    vmmcall
    xor ecx, ecx
    mov cr8, rcx
    sti
    nop
    cli
    vmmcall
svm_counts:
    rdpmc
    vmmcall
svm_monitors:
    monitor
    vmmcall
svm_odd:
    fld tbyte ptr [rsi]
    vmmcall
svm_adds:
    lock add [rsi], edi
    mov ecx, [rsi]
    vmmcall
svm_moves:
    cld
    movsd
    vmmcall
svm_writes_string:
    cld
    rep outsb
    vmmcall
svm_reads_string:
    cld
    rep insb
    vmmcall
# As it is, then with its global interrupt flag clear, then with it set, with IF from then on.
svm_gates:
    nop
    vmmcall
    clgi
    sti
    nop
    vmmcall
    stgi
    nop
    vmmcall
svm_closes:
    clgi
    sti
    nop
    wrmsr
    jmp svm_spins
svm_lets:
    stgi
    sti
    nop
    wrmsr
    jmp svm_spins
"#
);

/// What a guest tells that took an exception.
pub const REFUSED: u64 = 0xBAD;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $symbol:ident),+ $(,)?) => { $(
        $(#[$doc])*
        pub fn $name() -> u64 {
            unsafe extern "C" { static $symbol: u8; }
            (&raw const $symbol) as u64
        }
    )+ };
}

codes!(
    /// CPUID without end, with RDX + 1 in RCX.
    cpuids = svm_cpuids,
    /// VMMCALL.
    hypercall = svm_hypercall,
    /// HLT.
    halt = svm_halt,
    /// RDMSR of RCX, VMMCALL.
    reads_msr = svm_reads_msr,
    /// OUT to port 80h, VMMCALL.
    writes_port = svm_writes_port,
    /// OUT of RSI's byte to port DX, IN from there into RDI's lowest byte, that in RCX, VMMCALL.
    uses_port = svm_uses_port,
    /// IN from port DX, that in RCX, once more, VMMCALL.
    times = svm_times,
    /// WBINVD, CPUID of leaf RAX, VMMCALL.
    identifies = svm_identifies,
    /// UD2.
    undefined = svm_undefined,
    /// Nothing, without end.
    spins = svm_spins,
    /// Loads what is at RSI to RCX, VMMCALL.
    touches = svm_touches,
    /// Stores RDI at RSI, VMMCALL.
    stores = svm_stores,
    /// Goes to RSI.
    jumps = svm_jumps,
    /// Copies what is at RSI to where RDI says, until its lower half is all ones, VMMCALL.
    watches = svm_watches,
    /// Tells an exception: [`REFUSED`] in RDX, VMMCALL.
    refuses = svm_refuses,
    /// VMSAVE to RSI, VMMCALL.
    saves = svm_saves,
    /// VMLOAD from RSI, VMMCALL.
    loads = svm_loads,
    /// Loads where an interrupt came from to RCX, VMMCALL.
    arrives = svm_arrives,
    /// CLGI, VMMCALL, STGI, VMMCALL.
    flags = svm_flags,
    /// WRMSR of RCX, RDMSR of it, VMMCALL.
    writes_msr = svm_writes_msr,
    /// WRMSR of RCX, and nothing more without end.
    sends = svm_sends,
    /// Counts an interrupt in RDI, IRETQ.
    takes = svm_takes,
    /// STI, NOP, VMMCALL.
    opens = svm_opens,
    /// RCX to CR8, that in RDX, VMMCALL; STI, NOP, CLI, VMMCALL; 0 to CR8, and the same.
    prefers = svm_prefers,
    /// RDI to CR0, that in RCX, VMMCALL.
    loads_cr0 = svm_loads_cr0,
    /// LMSW of what is at RSI, CR0 in RCX, VMMCALL.
    loads_status = svm_loads_status,
    /// XSETBV of EAX, what is set then in RCX, VMMCALL.
    sets_states = svm_sets_states,
    /// CPUID of leaf RAX with a prefix, VMMCALL.
    prefixed = svm_prefixed,
    /// RDPMC.
    counts = svm_counts,
    /// MONITOR.
    monitors = svm_monitors,
    /// Loads ten bytes at RSI to the FPU, VMMCALL.
    odd = svm_odd,
    /// Adds EDI to what is at RSI, that in RCX, VMMCALL.
    adds = svm_adds,
    /// Moves four bytes from RSI to RDI, VMMCALL.
    moves = svm_moves,
    /// OUT of RCX bytes from RSI on to port DX, VMMCALL.
    writes_string = svm_writes_string,
    /// IN of RCX bytes from port DX to where RDI says, VMMCALL.
    reads_string = svm_reads_string,
    /// NOP, VMMCALL; CLGI, STI, NOP, VMMCALL; STGI, NOP, VMMCALL.
    gates = svm_gates,
    /// CLGI, STI, NOP, WRMSR of RCX, and nothing more without end.
    closes = svm_closes,
    /// STGI, STI, NOP, WRMSR of RCX, and nothing more without end.
    lets = svm_lets,
);
