//! What is loaded and stored, read and written back, and where it goes.

use crate::machine::{Access, Cpu, Lanes, Recorder, run, run_vectors};
use decode::{Error, Mode, decode, emulate_mmio};

#[test]
fn loads_fill_registers_as_their_size_says() {
    let value = 0xF1F2_F3F4_F5F6_F7F8;
    for (bytes, register, expected, size) in [
        (&[0x8B, 0x07][..], 0, 0xF5F6_F7F8, 4), // mov eax, [rdi]
        (&[0x48, 0x8B, 0x07], 0, value, 8),     // mov rax, [rdi]
        (&[0x66, 0x8B, 0x07], 0, 0x1122_3344_5566_F7F8, 2), // mov ax, [rdi]
        (&[0x8A, 0x07], 0, 0x1122_3344_5566_77F8, 1), // mov al, [rdi]
        (&[0x8A, 0x27], 0, 0x1122_3344_5566_F888, 1), // mov ah, [rdi]
        (&[0x40, 0x8A, 0x27], 4, 0x1122_3344_5566_77F8, 1), // mov spl, [rdi]
        (&[0x44, 0x8B, 0x07], 8, 0xF5F6_F7F8, 4), // mov r8d, [rdi]
        (&[0x0F, 0xB6, 0x07], 0, 0xF8, 1),      // movzx eax, byte [rdi]
        (&[0x66, 0x0F, 0xB6, 0x07], 0, 0x1122_3344_5566_00F8, 1), // movzx ax, byte [rdi]
        (&[0x0F, 0xB7, 0x07], 0, 0xF7F8, 2),    // movzx eax, word [rdi]
        (&[0x0F, 0xBE, 0x07], 0, 0xFFFF_FFF8, 1), // movsx eax, byte [rdi]
        (&[0x48, 0x0F, 0xBF, 0x07], 0, 0xFFFF_FFFF_FFFF_F7F8, 2), // movsx rax, word [rdi]
        (&[0x48, 0x63, 0x07], 0, 0xFFFF_FFFF_F5F6_F7F8, 4), // movsxd rax, dword [rdi]
        (&[0xA0, 0, 0, 0, 0xFE, 0, 0, 0, 0], 0, 0x1122_3344_5566_77F8, 1), // mov al, [moffs]
    ] {
        let mut cpu = Cpu::default();
        assert_eq!(run(bytes, &mut cpu, value), [Access::Load(size)], "{bytes:x?}");
        assert_eq!(cpu.gpr[register], expected, "{bytes:x?}");
        assert_eq!(cpu.rflags, 2);
    }
}

#[test]
fn stores_send_the_operand_alone() {
    for (bytes, size, value) in [
        (&[0x89, 0x07][..], 4, 0x5566_7788),             // mov [rdi], eax
        (&[0x48, 0x89, 0x07], 8, 0x1122_3344_5566_7788), // mov [rdi], rax
        (&[0x66, 0x89, 0x07], 2, 0x7788),                // mov [rdi], ax
        (&[0x88, 0x27], 1, 0x77),                        // mov [rdi], ah
        (&[0x40, 0x88, 0x27], 1, 0x88),                  // mov [rdi], spl
        (&[0xC6, 0x07, 0x9C], 1, 0x9C),                  // mov byte [rdi], 0x9c
        (&[0x66, 0xC7, 0x07, 0x01, 0x9C], 2, 0x9C01),    // mov word [rdi], 0x9c01
        (&[0xC7, 0x07, 1, 2, 3, 0xF4], 4, 0xF403_0201),  // mov dword [rdi], 0xf4030201
        (&[0x48, 0xC7, 0x07, 1, 2, 3, 0xF4], 8, 0xFFFF_FFFF_F403_0201), // mov qword [rdi], …
        (&[0xA3, 0, 0, 0, 0xFE, 0, 0, 0, 0], 4, 0x5566_7788), // mov [moffs], eax
        (&[0x0F, 0xC3, 0x07], 4, 0x5566_7788),           // movnti [rdi], eax
        (&[0x4C, 0x0F, 0xC3, 0x07], 8, 0x1122_3344_5566_7788), // movnti [rdi], r8
    ] {
        let mut cpu = Cpu::default();
        assert_eq!(run(bytes, &mut cpu, 0), [Access::Store(size, value)], "{bytes:x?}");
        assert_eq!(cpu.gpr, Cpu::default().gpr);
    }
}

#[test]
fn read_modify_write_loads_once_and_stores_once() {
    let mut cpu = Cpu::default();
    // lock or dword [rdi], 1
    let accesses = run(&[0xF0, 0x83, 0x0F, 0x01], &mut cpu, 0xFFFF_FFFF_8000_0000);
    assert_eq!(accesses, [Access::Load(4), Access::Store(4, 0x8000_0001)]);
    assert_eq!(cpu.rflags, 2 | 0x80); // SF; an odd number of ones in the low byte

    // xchg [rdi], bh
    let accesses = run(&[0x86, 0x3F], &mut cpu, 0xAABB);
    assert_eq!(accesses, [Access::Load(1), Access::Store(1, 0x77)]);
    assert_eq!(cpu.gpr[3], 0x1122_3344_5566_BB88);

    // test dword [rdi], 0x55667788 and cmp eax, [rdi]: flags alone
    let accesses = run(&[0xF7, 0x07, 0x88, 0x77, 0x66, 0x55], &mut cpu, 0);
    assert_eq!(accesses, [Access::Load(4)]);
    assert_eq!(cpu.rflags, 2 | 0x44); // ZF, PF
    let accesses = run(&[0x3B, 0x07], &mut cpu, 0x5566_7789);
    assert_eq!(accesses, [Access::Load(4)]);
    assert_eq!(cpu.rflags, 2 | 0x95); // CF, PF, AF, SF
    assert_eq!(cpu.gpr[0], 0x1122_3344_5566_7788);

    // sub eax, [rdi]: the register changes, the device doesn't
    let accesses = run(&[0x2B, 0x07], &mut cpu, 0x5566_7788);
    assert_eq!(accesses, [Access::Load(4)]);
    assert_eq!(cpu.gpr[0], 0);
}

#[test]
fn other_read_modify_writes_leave_what_the_processor_leaves() {
    const CF: u64 = 1;
    let mut cpu = Cpu { rflags: 2 | CF, ..Cpu::default() };
    // lock inc dword [rdi]: CF stays
    assert_eq!(
        run(&[0xF0, 0xFF, 0x07], &mut cpu, 0xFFFF_FFFF),
        [Access::Load(4), Access::Store(4, 0)]
    );
    assert_eq!(cpu.rflags, 2 | CF | 0x54); // ZF, AF, PF
    // dec byte [rdi]: overflow
    assert_eq!(run(&[0xFE, 0x0F], &mut cpu, 0x80), [Access::Load(1), Access::Store(1, 0x7F)]);
    assert_eq!(cpu.rflags, 2 | CF | 0x810); // OF, AF
    // not word [rdi]: no flags
    cpu.rflags = 2 | 0x8D5;
    assert_eq!(
        run(&[0x66, 0xF7, 0x17], &mut cpu, 0xFF00),
        [Access::Load(2), Access::Store(2, 0xFF)]
    );
    assert_eq!(cpu.rflags, 2 | 0x8D5);
    // neg qword [rdi], of 1 and of 0
    assert_eq!(
        run(&[0x48, 0xF7, 0x1F], &mut cpu, 1),
        [Access::Load(8), Access::Store(8, u64::MAX)]
    );
    assert_eq!(cpu.rflags, 2 | CF | 0x94); // SF, AF, PF
    run(&[0x48, 0xF7, 0x1F], &mut cpu, 0);
    assert_eq!(cpu.rflags, 2 | 0x44);

    // lock xadd [rdi], ebx
    assert_eq!(
        run(&[0xF0, 0x0F, 0xC1, 0x1F], &mut cpu, 0xAABB_CC77),
        [Access::Load(4), Access::Store(4, 0x0022_43FF)]
    );
    assert_eq!((cpu.gpr[3], cpu.rflags), (0xAABB_CC77, 2 | CF | 4));

    // lock cmpxchg [rdi], ecx: equal, then not
    assert_eq!(
        run(&[0xF0, 0x0F, 0xB1, 0x0F], &mut cpu, 0x5566_7788),
        [Access::Load(4), Access::Store(4, 0x5566_7788)]
    );
    cpu.gpr[1] = 7;
    assert_eq!(
        run(&[0xF0, 0x0F, 0xB1, 0x0F], &mut cpu, 0x5566_7788),
        [Access::Load(4), Access::Store(4, 7)]
    );
    assert_eq!((cpu.gpr[0], cpu.rflags), (0x1122_3344_5566_7788, 2 | 0x44));
    assert_eq!(
        run(&[0xF0, 0x0F, 0xB1, 0x0F], &mut cpu, 0x5566_7789),
        [Access::Load(4), Access::Store(4, 0x5566_7789)]
    );
    assert_eq!((cpu.gpr[0], cpu.rflags), (0x5566_7789, 2 | CF | 0x94));
    // cmpxchg [rdi], cl: bytes
    assert_eq!(run(&[0x0F, 0xB0, 0x0F], &mut cpu, 0x89), [Access::Load(1), Access::Store(1, 7)]);
}

#[test]
fn bits_are_those_of_the_index_that_fit_the_operand() {
    const CF: u64 = 1;
    for (bytes, rcx, before, after) in [
        (&[0x0F, 0xAB, 0x0F][..], 35, 0, Some(8)), // bts [rdi], ecx
        (&[0x48, 0x0F, 0xAB, 0x0F], 35, 0, Some(1 << 35)), // bts [rdi], rcx
        (&[0x66, 0x0F, 0xB3, 0x0F], 19, 0xFF, Some(0xF7)), // btr [rdi], cx
        (&[0x0F, 0xBB, 0x0F], u64::MAX, 1 << 31, Some(0)), // btc [rdi], ecx
        (&[0x0F, 0xA3, 0x0F], 3, 8, None),         // bt [rdi], ecx
        (&[0x0F, 0xBA, 0x27, 0x23], 0, 8, None),   // bt dword [rdi], 0x23
        (&[0xF0, 0x0F, 0xBA, 0x2F, 0x05], 0, 0, Some(0x20)), // lock bts dword [rdi], 5
        (&[0x0F, 0xBA, 0x37, 0x05], 0, 0x60, Some(0x40)), // btr dword [rdi], 5
        (&[0x0F, 0xBA, 0x3F, 0xFF], 0, 0, Some(1 << 31)), // btc dword [rdi], 0xff
    ] {
        let mut cpu = Cpu { rflags: 2 | 0x8D4, ..Cpu::default() };
        cpu.gpr[1] = rcx;
        let size = if bytes[0] == 0x48 {
            8
        } else if bytes[0] == 0x66 {
            2
        } else {
            4
        };
        let accesses = run(bytes, &mut cpu, before);
        let expected = after.map(|after| Access::Store(size, after));
        assert_eq!(accesses[0], Access::Load(size), "{bytes:x?}");
        assert_eq!(accesses.get(1), expected.as_ref(), "{bytes:x?}");
        let was_set = after.is_none_or(|after| after & before != before);
        assert_eq!(cpu.rflags, 2 | 0x8D4 | if was_set { CF } else { 0 }, "{bytes:x?}");
    }
}

#[test]
fn vector_moves_reach_as_far_as_their_encoding_says() {
    let value = 0xF1F2_F3F4_F5F6_F7F0;
    let old = Lanes::default().vectors;
    let lane = |lane: u64| value + lane;
    for (bytes, register, size, expected) in [
        (&[0x0F, 0x10, 0x0F][..], 1, 16, [lane(0), lane(1), old[1][2], old[1][3]]), // movups
        (&[0x66, 0x44, 0x0F, 0x28, 0x0F], 9, 16, [lane(0), lane(1), old[9][2], old[9][3]]), // movapd
        (&[0xF3, 0x0F, 0x6F, 0x0F], 1, 16, [lane(0), lane(1), old[1][2], old[1][3]]), // movdqu
        (&[0xF3, 0x0F, 0x10, 0x0F], 1, 4, [0xF5F6_F7F0, 0, old[1][2], old[1][3]]),    // movss
        (&[0xF2, 0x0F, 0x10, 0x0F], 1, 8, [value, 0, old[1][2], old[1][3]]),          // movsd
        (&[0x66, 0x0F, 0x6E, 0x0F], 1, 4, [0xF5F6_F7F0, 0, old[1][2], old[1][3]]),    // movd
        (&[0x66, 0x48, 0x0F, 0x6E, 0x0F], 1, 8, [value, 0, old[1][2], old[1][3]]),    // movq
        (&[0xC5, 0xFA, 0x6F, 0x0F], 1, 16, [lane(0), lane(1), 0, 0]), // vmovdqu xmm1
        (&[0xC5, 0x7D, 0x6F, 0x0F], 9, 32, [lane(0), lane(1), lane(2), lane(3)]), // vmovdqa ymm9
        (&[0xC4, 0xE2, 0x7D, 0x2A, 0x0F], 1, 32, [lane(0), lane(1), lane(2), lane(3)]), // vmovntdqa
        (&[0xC4, 0xE1, 0xF9, 0x6E, 0x0F], 1, 8, [value, 0, 0, 0]),    // vmovq
        (&[0xC5, 0xF9, 0x6E, 0x0F], 1, 4, [0xF5F6_F7F0, 0, 0, 0]),    // vmovd
        (&[0xC5, 0xFA, 0x10, 0x0F], 1, 4, [0xF5F6_F7F0, 0, 0, 0]),    // vmovss
    ] {
        let (mut cpu, mut lanes) = (Cpu::default(), Lanes::default());
        let accesses = run_vectors(bytes, &mut cpu, &mut lanes, value);
        assert_eq!(accesses, [Access::LoadVector(size)], "{bytes:x?}");
        assert_eq!(lanes.vectors[register], expected, "{bytes:x?}");
        lanes.vectors[register] = old[register];
        assert!(lanes.vectors == old && cpu.gpr == Cpu::default().gpr && cpu.rflags == 2);
    }
    let [a, b, c, d] = old[9];
    for (bytes, size, expected) in [
        (&[0x44, 0x0F, 0x11, 0x0F][..], 16, [a, b, 0, 0]), // movups
        (&[0x44, 0x0F, 0x2B, 0x0F], 16, [a, b, 0, 0]),     // movntps
        (&[0x66, 0x44, 0x0F, 0xE7, 0x0F], 16, [a, b, 0, 0]), // movntdq
        (&[0x66, 0x44, 0x0F, 0x7E, 0x0F], 4, [a as u32 as u64, 0, 0, 0]), // movd
        (&[0x66, 0x4C, 0x0F, 0x7E, 0x0F], 8, [a, 0, 0, 0]), // movq
        (&[0x66, 0x44, 0x0F, 0xD6, 0x0F], 8, [a, 0, 0, 0]), // movq
        (&[0xF2, 0x44, 0x0F, 0x11, 0x0F], 8, [a, 0, 0, 0]), // movsd
        (&[0xC5, 0x7E, 0x7F, 0x0F], 32, [a, b, c, d]),     // vmovdqu ymm9
        (&[0xC5, 0x7A, 0x7F, 0x0F], 16, [a, b, 0, 0]),     // vmovdqu xmm9
        (&[0xC5, 0x7D, 0xE7, 0x0F], 32, [a, b, c, d]),     // vmovntdq
    ] {
        let mut cpu = Cpu::default();
        assert_eq!(run(bytes, &mut cpu, 0), [Access::StoreVector(size, expected)], "{bytes:x?}");
        assert!(cpu.gpr == Cpu::default().gpr && cpu.rflags == 2);
    }
}

#[test]
fn vector_registers_that_are_off_stay_untouched() {
    for (bytes, width) in [
        (&[0x0F, 0x10, 0x0F][..], 0),
        (&[0x0F, 0x11, 0x0F], 0),
        (&[0xC5, 0xFA, 0x6F, 0x0F], 16),
        (&[0xC5, 0xFA, 0x7F, 0x0F], 16),
    ] {
        let instruction = decode(bytes, Mode::Bits64).unwrap();
        let mut lanes = Lanes { width, ..Lanes::default() };
        let mut device = Recorder { value: 0, accesses: Vec::new() };
        let refused = emulate_mmio(&instruction, &mut Cpu::default(), &mut lanes, &mut device);
        assert_eq!(refused, Err(Error::NoVectors));
        assert!(device.accesses.is_empty() && lanes.vectors == Lanes::default().vectors);
    }
}

#[test]
fn elements_of_strings_move_pointers_and_count() {
    use Mode::{Bits16, Bits32, Bits64};
    const DF: u64 = 1 << 10;
    // RCX, RSI, RDI before and after one element, and whether another follows.
    for (bytes, mode, rflags, before, after, more) in [
        (&[0xA4][..], Bits64, 2, [3, 10, 20], [3, 11, 21], false), // movsb
        (&[0xF3, 0x48, 0xA5], Bits64, 2, [3, 16, 32], [2, 24, 40], true), // rep movsq
        (&[0xF3, 0xA5], Bits64, 2 | DF, [1, 16, 0], [0, 12, !3], false), // rep movsd, back
        (&[0xF2, 0xAA], Bits64, 2, [2, 5, 6], [1, 5, 7], true),    // repne stosb
        (&[0x66, 0xAB], Bits64, 2, [2, 5, 6], [2, 5, 8], false),   // stosw
        (&[0xF3, 0xAD], Bits64, 2, [9, 8, 7], [8, 12, 7], true),   // rep lodsd
        (&[0x67, 0xF3, 0xAC], Bits32, 2, [0x7_0001, 0x4_FFFF, 7], [0x7_0000, 0x4_0000, 7], false),
        (&[0xF3, 0xA5], Bits16, 2, [0x8_0002, 0xFFFE, 1], [0x8_0001, 0, 3], true), // rep movsw
        (&[0xF3, 0x67, 0xA4], Bits64, 2, [1 << 32 | 1, u32::MAX.into(), 1], [0, 0, 2], false),
        (&[0xF3, 0x6D], Bits64, 2, [2, 5, 6], [1, 5, 10], true), // rep insd
        (&[0x6E], Bits64, 2 | DF, [2, 5, 6], [2, 4, 6], false),  // outsb
    ] {
        let instruction = decode(bytes, mode).unwrap();
        let mut cpu = Cpu { rflags, ..Cpu::default() };
        (cpu.gpr[1], cpu.gpr[6], cpu.gpr[7]) = (before[0], before[1], before[2]);
        assert!(instruction.has_element(&cpu), "{bytes:x?}");
        assert_eq!(instruction.pass_element(&mut cpu), more, "{bytes:x?}");
        assert_eq!([cpu.gpr[1], cpu.gpr[6], cpu.gpr[7]], after, "{bytes:x?}");
        assert_eq!((cpu.rflags, cpu.gpr[0]), (rflags, Cpu::default().gpr[0]));
        let mut device = Recorder { value: 0, accesses: Vec::new() };
        let refused = emulate_mmio(&instruction, &mut cpu, &mut Lanes::default(), &mut device);
        assert_eq!((refused, device.accesses), (Err(Error::NotMemoryAccess), vec![]));
    }
    let mut cpu = Cpu::default();
    cpu.gpr[1] = 1 << 32;
    let has = |bytes: &[u8], mode| decode(bytes, mode).unwrap().has_element(&cpu);
    assert!(has(&[0xF3, 0xA4], Bits64) && has(&[0xA4], Bits32));
    assert!(!has(&[0xF3, 0xA4], Bits32) && !has(&[0x67, 0xF3, 0xAA], Bits64));
    assert!(!has(&[0x89, 0x07], Bits64), "no string instruction");
    let store = decode(&[0x89, 0x07], Bits64).unwrap();
    let mut cpu = Cpu::default();
    assert!(!decode(&[0xF4], Bits64).unwrap().pass_element(&mut cpu));
    assert!(!store.pass_element(&mut cpu) && cpu.gpr == Cpu::default().gpr);
}
