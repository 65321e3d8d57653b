//! The test kernel: runs the tests named on its command line (`test=a,b`), bare or
//! as a guest of Exitless, and says of each thing checked `ok` or `FAIL`.
//!
//! The same test asserts the same behaviour on both; as a guest it also compares
//! the host's exit counters with what the policy (`policy=trap`, `eli` or `direct`)
//! allows. Ends by the debug-exit port with [`power::PASSED`] or
//! [`power::FAILED`], unless the test is about another end. With `order=typed` it says `ready`, and
//! begins when a byte comes on its console.
#![no_std]
#![no_main]

mod tests;

use boot::Boot;
use console::println;
use machine::{
    acpi, amdvi, boot, console, counters, cpu, edu, idt, nvme, pci, power, random, smp, state,
    unit, viommu, virtio, virtio_blk, virtio_net, virtqueue, vtd, wait, x2apic, xapic,
};

machine::kernel!(main);

fn main(boot: &Boot) -> ! {
    let names = boot.option("test").unwrap_or("hello");
    println!("kernel: {names}, {:?}, by {}", counters::policy(), boot.protocol);
    if boot.option("order") == Some("typed") {
        println!("ready");
        while console::typed().is_none() {
            wait::settle();
        }
    }
    for name in names.split(',') {
        match tests::ALL.iter().find(|(n, _)| *n == name) {
            Some((name, test)) => {
                idt::reset();
                test(name, boot);
                cpu::disable_interrupts();
            }
            None => console::check!(name, false, "no such test"),
        }
    }
    power::debug_exit(if console::failed() { power::FAILED } else { power::PASSED })
}
