use super::*;

const OFFERED: u64 = 1 << 9 | RING_PACKED | 1 << 28;

fn fresh() -> Common {
    Common::new(OFFERED, 4, 256)
}

fn accept(common: &mut Common, features: u64) {
    for (half, value) in [(0, features & 0xFFFF_FFFF), (1, features >> 32)] {
        common.write(0x08, 4, half);
        common.write(0x0C, 4, value);
    }
}

fn status(common: &Common) -> u8 {
    common.read(0x14, 1) as u8
}

fn set(common: &mut Common, bits: u8) -> Effect {
    common.write(0x14, 1, (status(common) | bits).into())
}

/// Up to FEATURES_OK.
fn agreed(features: u64) -> Common {
    let mut common = fresh();
    set(&mut common, ACKNOWLEDGE | DRIVER);
    accept(&mut common, features);
    set(&mut common, FEATURES_OK);
    assert_eq!(status(&common), ACKNOWLEDGE | DRIVER | FEATURES_OK);
    common
}

fn running() -> Common {
    let mut common = agreed(VERSION_1);
    common.write(0x1C, 2, 1);
    assert_eq!(set(&mut common, DRIVER_OK), Effect::Start);
    common
}

/// The layout of `struct virtio_pci_common_cfg`, from what each field reads after it was written.
#[test]
fn fields_are_where_the_standard_has_them() {
    let mut common = agreed(VERSION_1);
    let fields = [
        (0x00, 4, 1),
        (0x08, 4, 1),
        (0x10, 2, 4),
        (0x16, 2, 3),
        (0x18, 2, 128),
        (0x1A, 2, 2),
        (0x20, 4, 0x1111_1000),
        (0x24, 4, 0x11),
        (0x28, 4, 0x2222_2000),
        (0x2C, 4, 0x22),
        (0x30, 4, 0x3333_3000),
        (0x34, 4, 0x33),
        (0x1C, 2, 1),
    ];
    for (offset, size, value) in fields {
        common.write(offset, size, value);
    }
    for (offset, size, value) in fields {
        assert_eq!(common.read(offset, size), value, "{offset:#x}");
    }
    assert_eq!(common.read(0x04, 4), 1 | RING_PACKED >> 32, "VERSION_1 is offered besides");
    assert_eq!(common.read(0x0C, 4), 1, "what was accepted, upper half");
    assert_eq!((common.read(0x12, 2), common.read(0x1E, 2)), (4, 3), "num_queues, notify_off");
    let queue = common.queues()[3];
    assert_eq!(
        queue,
        Queue {
            size: 128,
            vector: 2,
            enabled: true,
            descriptors: 0x11_1111_1000,
            driver: 0x22_2222_2000,
            device: 0x33_3333_3000,
        }
    );
    assert!(!common.queues()[0].enabled);
}

#[test]
fn a_field_has_one_width() {
    let mut common = running();
    let before = common.clone();
    for offset in 0..0x1008_u64 {
        for size in [0, 1, 2, 3, 4, 8, 255] {
            let width = match offset {
                0x00 | 0x04 | 0x08 | 0x0C | 0x20 | 0x24 | 0x28 | 0x2C | 0x30 | 0x34 => 4,
                0x10 | 0x12 | 0x16 | 0x18 | 0x1A | 0x1C | 0x1E => 2,
                0x14 | 0x15 => 1,
                _ => 0,
            };
            if size == 0 || size != width {
                assert_eq!(common.read(offset, size), 0, "{offset:#x} by {size}");
                assert_eq!(common.write(offset, size, u64::MAX), Effect::None);
            }
        }
    }
    assert_eq!(format!("{common:?}"), format!("{before:?}"));
}

#[test]
fn features_ok_wants_a_subset_and_version_1() {
    for (features, agrees) in [
        (0, false),
        (1 << 9, false),
        (VERSION_1, true),
        (VERSION_1 | OFFERED, true),
        (VERSION_1 | 1 << 10, false),
        (VERSION_1 | 1 << 33, false),
    ] {
        let mut common = fresh();
        accept(&mut common, features);
        set(&mut common, FEATURES_OK);
        assert_eq!(status(&common) & FEATURES_OK != 0, agrees, "{features:#x}");
        accept(&mut common, 0);
        assert_eq!(common.features() == features, agrees || features == 0, "closed by agreement");
    }
}

#[test]
fn features_beyond_the_64th_are_none() {
    let mut common = fresh();
    for select in [2, 3, u32::MAX] {
        common.write(0x00, 4, select.into());
        common.write(0x08, 4, select.into());
        common.write(0x0C, 4, 1);
        assert_eq!((common.read(0x04, 4), common.read(0x0C, 4)), (0, 0));
    }
    assert_eq!(common.features(), 0);
    // Who asks for one doesn't get the device's agreement, whatever it says later.
    accept(&mut common, VERSION_1);
    common.write(0x08, 4, 2);
    common.write(0x0C, 4, 0);
    set(&mut common, ACKNOWLEDGE | DRIVER | FEATURES_OK);
    assert_eq!(status(&common), ACKNOWLEDGE | DRIVER);
    common.reset();
    accept(&mut common, VERSION_1);
    set(&mut common, ACKNOWLEDGE | DRIVER | FEATURES_OK);
    assert_eq!(status(&common), ACKNOWLEDGE | DRIVER | FEATURES_OK);
}

#[test]
fn driver_ok_without_features_ok_is_ignored() {
    let mut common = fresh();
    assert_eq!(set(&mut common, ACKNOWLEDGE | DRIVER | DRIVER_OK), Effect::None);
    assert_eq!(status(&common), ACKNOWLEDGE | DRIVER);
    accept(&mut common, VERSION_1);
    assert_eq!(set(&mut common, FEATURES_OK | DRIVER_OK), Effect::Start, "both at once");
    assert_eq!(set(&mut common, DRIVER_OK), Effect::None, "it runs already");
}

#[test]
fn a_status_bit_is_cleared_by_a_reset_alone() {
    let mut common = running();
    common.needs_reset();
    let all = status(&common);
    assert_eq!(common.write(0x14, 1, ACKNOWLEDGE.into()), Effect::None);
    assert_eq!(status(&common), all);
    let mut common = fresh();
    set(&mut common, NEEDS_RESET | 0x30 | FAILED);
    assert_eq!(status(&common), FAILED, "the rest isn't the driver's");
}

#[test]
fn a_size_is_a_power_of_two_unless_packed() {
    for (features, size, taken) in [
        (VERSION_1, 128, true),
        (VERSION_1, 1, true),
        (VERSION_1, 0, false),
        (VERSION_1, 3, false),
        (VERSION_1, 512, false),
        (VERSION_1 | RING_PACKED, 3, true),
        (VERSION_1 | RING_PACKED, 257, false),
        (VERSION_1 | RING_PACKED, 0, false),
    ] {
        let mut common = agreed(features);
        common.write(0x18, 2, size);
        assert_eq!(common.read(0x18, 2), if taken { size } else { 256 });
    }
}

#[test]
fn a_size_of_packed_rings_doesnt_outlive_their_refusal() {
    let mut common = fresh();
    accept(&mut common, VERSION_1 | RING_PACKED);
    common.write(0x18, 2, 100);
    accept(&mut common, VERSION_1);
    set(&mut common, FEATURES_OK);
    common.write(0x1C, 2, 1);
    assert_eq!((common.read(0x18, 2), common.read(0x1C, 2)), (100, 0));
    common.write(0x18, 2, 64);
    common.write(0x1C, 2, 1);
    assert_eq!(common.read(0x1C, 2), 1);
}

#[test]
fn an_enabled_queue_is_locked() {
    let mut common = agreed(VERSION_1);
    common.write(0x20, 4, 0x1000);
    common.write(0x1C, 2, 1);
    let locked = common.queues()[0];
    for (offset, size) in
        [(0x18, 2), (0x1C, 2), (0x20, 4), (0x24, 4), (0x28, 4), (0x2C, 4), (0x30, 4), (0x34, 4)]
    {
        assert_eq!(common.write(offset, size, 16), Effect::None);
    }
    assert_eq!(common.write(0x1C, 2, 0), Effect::None);
    assert_eq!(common.queues()[0], locked);
    assert_eq!(common.write(0x1A, 2, 1), Effect::Vectors, "the vector isn't");
    assert_eq!(common.queues()[0], Queue { vector: 1, ..locked });
}

#[test]
fn no_queue_is_enabled_before_the_features_or_after_the_start() {
    let mut common = fresh();
    common.write(0x1C, 2, 1);
    assert_eq!(common.read(0x1C, 2), 0);
    let mut common = running();
    common.write(0x16, 2, 1);
    common.write(0x20, 4, 0x1000);
    common.write(0x1C, 2, 1);
    assert_eq!((common.read(0x20, 4), common.read(0x1C, 2)), (0, 0));
    let mut common = agreed(VERSION_1);
    common.write(0x1C, 2, 0xFF);
    assert_eq!(common.read(0x1C, 2), 0, "1 alone enables");
}

#[test]
fn a_queue_that_isnt_there_has_size_0() {
    let mut common = agreed(VERSION_1);
    for select in [4, 16, 0xFFFF] {
        common.write(0x16, 2, select);
        assert_eq!(common.read(0x16, 2), select);
        for (offset, size) in [(0x18, 2), (0x1A, 2), (0x1C, 2), (0x1E, 2), (0x20, 4), (0x34, 4)] {
            assert_eq!(common.write(offset, size, 1), Effect::None);
            assert_eq!(common.read(offset, size), 0);
        }
    }
}

#[test]
fn a_vector_beyond_the_table_is_none() {
    let mut common = fresh();
    for offset in [0x10, 0x1A] {
        for (value, read) in [(0, 0), (4, 4), (5, 0xFFFF), (0x8000, 0xFFFF), (0xFFFF, 0xFFFF)] {
            assert_eq!(common.write(offset, 2, value), Effect::Vectors);
            assert_eq!(common.read(offset, 2), read);
        }
    }
}

#[test]
fn a_reset_shows_only_when_the_queues_are_let_go_of() {
    let mut common = running();
    assert_eq!(common.write(0x14, 1, 0), Effect::Reset);
    assert_ne!(status(&common), 0);
    assert!(!common.is_running());
    assert_eq!(common.queues(), fresh().queues(), "at reset already");
    assert_eq!(common.write(0x14, 1, 0), Effect::None, "told once");
    assert_eq!(set(&mut common, DRIVER_OK), Effect::None);
    accept(&mut common, VERSION_1);
    assert_eq!(common.features(), 0, "nothing is taken meanwhile");
    common.idle();
    assert_eq!(format!("{common:?}"), format!("{:?}", fresh()));
}

#[test]
fn a_reset_of_what_never_ran_is_done_at_once() {
    let mut common = agreed(VERSION_1);
    assert_eq!(common.write(0x14, 1, 0), Effect::Reset);
    assert_eq!(format!("{common:?}"), format!("{:?}", fresh()));
}

#[test]
fn a_driver_that_doesnt_run_isnt_told_that_the_device_needs_a_reset() {
    let mut common = agreed(VERSION_1);
    assert!(!common.needs_reset());
    assert_eq!(status(&common) & NEEDS_RESET, 0);
    let mut common = running();
    assert!(common.needs_reset());
    assert_ne!(status(&common) & NEEDS_RESET, 0);
    assert!(!common.needs_reset(), "told once");
    common.write(0x14, 1, 0);
    assert!(!common.needs_reset());
    common.idle();
    assert_eq!(status(&common), 0);
}

#[test]
fn the_generation_survives_a_reset_and_wraps() {
    let mut common = running();
    (0..257).for_each(|_| common.next_generation());
    common.reset();
    common.idle();
    assert_eq!(common.read(0x15, 1), 1);
}
