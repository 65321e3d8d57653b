use super::*;
use crate::{VERSION_1, bar, status};

const HOST: Host = Host { idle: true, config: &[1, 2, 3, 4, 5, 6, 7, 8, 9], pending: 0x1_0005 };
const ON: Control = Control { enabled: true, masked: false };

fn function() -> Function {
    Function::new(0, 2, 64).unwrap()
}

fn running() -> Function {
    let mut function = function();
    for (offset, size, value) in [
        (0x08, 4, 1),
        (0x0C, 4, VERSION_1 >> 32),
        (0x14, 1, status::FEATURES_OK.into()),
        (0x16, 2, 1),
        (0x1C, 2, 1),
        (0x10, 2, 2),
        (0x14, 1, status::DRIVER_OK.into()),
    ] {
        function.write(bar::COMMON + offset, size, value, &HOST);
    }
    assert!(function.is_running());
    function
}

#[test]
fn there_are_1_to_16_queues() {
    for queues in [0, 17, 0xFFFF] {
        let refused = Function::new(0, queues, 64).unwrap_err();
        assert!(refused.to_string().starts_with(&format!("{queues} queues")));
    }
    for (max, made) in [(0, 1), (1, 1), (100, 64), (256, 256), (0xFFFF, 0x8000)] {
        assert_eq!(Function::new(0, 16, max).unwrap().queues()[15].size, made);
    }
}

#[test]
fn the_device_configuration_is_read_at_any_offset_and_width() {
    let mut f = function();
    let mut read = |at, size| f.read(bar::DEVICE + at, size, &HOST);
    assert_eq!((read(0, 1), read(1, 2), read(3, 4)), (1, 0x0302, 0x0706_0504));
    assert_eq!(read(0, 8), 0x0807_0605_0403_0201);
    assert_eq!((read(7, 4), read(9, 8), read(0xFFF, 1)), (0x0908, 0, 0), "zero beyond the end");
    assert_eq!((read(0xFFE, 4), read(0, 3), read(0, 0)), (0, 0, 0));
    let written = Effect::Config { at: 2, size: 4, value: 7 };
    assert_eq!(f.write(bar::DEVICE + 2, 4, 7, &HOST), written);
    assert_eq!(f.read(bar::DEVICE, 4, &HOST), 0x0403_0201, "whose it is keeps it, or not");
}

#[test]
fn an_access_over_a_pages_end_reaches_nothing() {
    let mut f = running();
    assert_eq!(f.read(bar::ISR - 1, 2, &HOST), 0);
    assert_eq!(f.read(bar::PENDING - 4, 8, &HOST), 0);
    for offset in [bar::SIZE, bar::SIZE - 8, u64::MAX, u64::MAX - 3, bar::PENDING + bar::PAGE] {
        assert_eq!(f.read(offset, 8, &HOST), 0);
        assert_eq!(f.write(offset, 8, u64::MAX, &HOST), Effect::None);
    }
}

#[test]
fn the_isr_tells_of_a_changed_configuration_once() {
    let mut f = running();
    assert_eq!(f.read(bar::ISR, 1, &HOST), 0);
    assert_eq!(f.configuration_changed(), Some(2));
    assert_eq!((f.read(bar::ISR, 4, &HOST), f.read(bar::ISR + 1, 1, &HOST)), (0, 0));
    assert_eq!(f.read(bar::ISR, 1, &HOST), 2);
    assert_eq!(f.read(bar::ISR, 1, &HOST), 0, "cleared by the read");
    assert_eq!(f.read(bar::COMMON + 0x15, 1, &HOST), 1, "another generation");
    assert_eq!(f.needs_reset(), Some(2));
    assert_eq!(f.read(bar::COMMON + 0x15, 1, &HOST), 1, "the same");
    assert_eq!(f.read(bar::ISR, 1, &HOST), 2);
    f.write(bar::COMMON + 0x10, 2, NO_VECTOR.into(), &HOST);
    assert_eq!(f.configuration_changed(), None, "no vector");
    assert_eq!(f.needs_reset(), None, "told already");
    f.write(bar::COMMON + 0x14, 1, 0, &HOST);
    assert_eq!(f.read(bar::ISR, 1, &HOST), 0, "cleared by the reset");
    assert_eq!((f.needs_reset(), f.configuration_changed()), (None, None));
    assert_eq!(f.read(bar::ISR, 1, &HOST), 0, "nobody to be told");
}

/// A VM that starts again must find the status at zero, whatever is ordered meanwhile.
#[test]
fn a_reset_that_was_waited_for_is_over() {
    let busy = Host { idle: false, ..HOST };
    let mut f = running();
    f.reset();
    assert_ne!(f.read(bar::COMMON + 0x14, 1, &busy), 0, "the server has the queues");
    f.settled();
    assert_eq!(f.read(bar::COMMON + 0x14, 1, &busy), 0);
    assert_eq!(f.write(bar::COMMON + 0x14, 1, 1, &busy), Effect::None);
    assert_eq!(f.read(bar::COMMON + 0x14, 1, &busy), 1);
}

#[test]
fn the_table_and_the_pending_bits_are_msi_xs() {
    let mut f = running();
    assert_eq!(f.write(bar::TABLE + 16, 8, 0xFEE0_1000, &HOST), Effect::Entry(1));
    assert_eq!(f.write(bar::TABLE + 24, 8, 0x41, &HOST), Effect::Entry(1));
    assert_eq!(f.read(bar::TABLE + 16, 4, &HOST), 0xFEE0_1000);
    assert_eq!(f.written(1, ON).map(|w| w.message()).transpose().unwrap().unwrap().vector, 0x41);
    assert_eq!(f.write(bar::TABLE + 48, 4, 1, &HOST), Effect::None, "three entries");
    assert_eq!(f.written(3, ON).map(|w| w.message()).transpose(), Ok(None));
    assert_eq!((f.read(bar::PENDING, 8, &HOST), f.read(bar::PENDING + 2, 1, &HOST)), (0x1_0005, 1));
    assert_eq!(f.write(bar::PENDING, 8, 0, &HOST), Effect::None);
    f.write(bar::COMMON + 0x14, 1, 0, &HOST);
    assert!(
        f.written(1, ON).map(|w| w.message()).transpose().unwrap().is_some(),
        "the table isn't virtio's to reset"
    );
    f.reset();
    assert_eq!(f.written(1, ON).map(|w| w.message()).transpose(), Ok(None));
}

#[test]
fn a_trapped_notification_names_a_queue_that_is_served() {
    let mut f = running();
    let mut notify = |at, size, value| f.write(bar::NOTIFY + at, size, value, &HOST);
    assert_eq!(notify(4, 2, 1), Effect::Notify(1));
    assert_eq!(notify(0, 2, 0), Effect::None, "not enabled");
    assert_eq!((notify(0, 2, 2), notify(0, 2, 0xFFFF)), (Effect::None, Effect::None));
    assert_eq!((notify(4, 4, 1), notify(4, 1, 1)), (Effect::None, Effect::None));
    f.write(bar::COMMON + 0x14, 1, 0, &HOST);
    assert_eq!(f.write(bar::NOTIFY + 4, 2, 1, &HOST), Effect::None);
}

#[test]
fn a_restart_waits_for_the_server_too() {
    let mut f = running();
    f.reset();
    let busy = Host { idle: false, ..HOST };
    assert_ne!(f.read(bar::COMMON + 0x14, 1, &busy), 0);
    assert_eq!(f.write(bar::COMMON + 0x16, 2, 1, &busy), Effect::None);
    assert_eq!(f.read(bar::COMMON + 0x16, 2, &busy), 0);
    assert_eq!(f.write(bar::COMMON + 0x16, 2, 1, &HOST), Effect::None);
    assert_eq!(f.read(bar::COMMON + 0x16, 2, &HOST), 1, "a write, too, ends it");
    assert_eq!(f.read(bar::COMMON + 0x14, 1, &busy), 0);
}
