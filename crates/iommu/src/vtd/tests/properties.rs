//! Encodings that must survive a round trip, and what must hold after any calls in any order.

use super::model::{CAP, ECAP};
use super::{C, CM, ROOT, bdf, domain, on, route};
use crate::pages::{Pages, pages};
use crate::vtd::posted::{self, Posted};
use crate::vtd::{context, interrupt, ioapic_entry, message};
use crate::{Delivery, InterruptRoute, Message, Range};
use proptest::prelude::*;

proptest! {
    #[test]
    fn entries_survive_encoding(source: u16, destination: u32, vector: u8, nmi: bool) {
        let delivery = if nmi { Delivery::Nmi } else { Delivery::Fixed(vector) };
        let route = InterruptRoute { source: bdf(source), destination, delivery };
        let (low, high) = interrupt::encode(route);
        prop_assert_eq!(interrupt::decode(low, high), Some(route));
        prop_assert_eq!(interrupt::decode(low & !1, high), None);
    }

    #[test]
    fn posted_entries_survive_encoding(
        source: u16, vector: u8, urgent: bool, descriptor: u64, bit in 0u32..128
    ) {
        let of = |descriptor| Posted { source: bdf(source), vector, urgent, descriptor };
        prop_assert_eq!(posted::encode(of(descriptor | 1 << (descriptor % 6))), None);
        let posted = of(descriptor & !63);
        let (low, high) = posted::encode(posted).unwrap();
        prop_assert_eq!(posted::decode(low, high), Some(posted));
        prop_assert_eq!(interrupt::decode(low, high), None, "it isn't of the other format");
        // Each bit is some part's, or makes it none of these.
        let whole = u128::from(high) << 64 | u128::from(low);
        let changed = whole ^ 1 << bit;
        prop_assert_ne!(posted::decode(changed as u64, (changed >> 64) as u64), Some(posted));
    }

    #[test]
    fn contexts_survive_encoding(id: u16, frame in 0u64..1 << 40, levels in 3u8..=5) {
        let context = domain(id, frame << 12, levels);
        let entry = context::encode(context);
        prop_assert_eq!(context::decode(entry), Some(context));
    }

    #[test]
    fn messages_differ_and_carry_the_index(index: u16) {
        let Message { address, .. } = message(index);
        let found = (address >> 5 & 0x7FFF) as u16 | ((address >> 2 & 1) as u16) << 15;
        prop_assert_eq!(found, index);
        prop_assert_eq!(address >> 20, 0xFEE);
        let entry = ioapic_entry(index, 0x30);
        prop_assert_eq!((entry >> 49) as u16 | ((entry >> 11 & 1) as u16) << 15, index);
    }

    #[test]
    fn flushed_pages_cover_the_range(address: u64, bytes: u64, psi: bool, mamv in 0u8..64) {
        let range = Range::Bytes { address, bytes };
        match pages(range, psi.then_some(mamv)) {
            Pages::None => prop_assert_eq!(bytes, 0),
            Pages::All => prop_assert!(bytes != 0),
            Pages::Block { page, order } => {
                prop_assert!(psi && order <= mamv && bytes != 0);
                let last = address.checked_add(bytes - 1).unwrap();
                prop_assert_eq!(page % (1 << order), 0);
                prop_assert!(page <= address >> 12 && last >> 12 <= page + ((1 << order) - 1));
            }
        }
    }

    /// Whatever is done in whatever order: no stale cache afterwards, the tables say what was
    /// asked, and the unit never saw a route that nobody asked for.
    #[test]
    fn any_sequence_leaves_nothing_stale(
        caching_mode: bool,
        coherent: bool,
        steps in prop::collection::vec((0u8..4, 0u16..6, 1u16..4, 16u8..20), 1..40),
    ) {
        let cap = if caching_mode { CAP | CM } else { CAP };
        let (model, mut unit) = on(cap, if coherent { ECAP | C } else { ECAP });
        let first = unit.allocate_irtes(4).unwrap();
        let mut attached = [None; 6];
        let mut routed = [None; 6];
        let mut asked = Vec::new();
        for (step, device, domain, vector) in steps {
            // Devices of two buses.
            let source = (device % 2) << 8 | device;
            let (n, index) = (usize::from(device), first + device % 4);
            match step {
                0 => {
                    let result = unit.attach(bdf(source), super::domain(domain, ROOT, 3));
                    prop_assert_eq!(result.is_ok(), attached[n].is_none());
                    attached[n] = attached[n].or(Some(domain));
                }
                1 => {
                    prop_assert_eq!(unit.detach(bdf(source)).is_ok(), attached[n].is_some());
                    attached[n] = None;
                }
                2 => {
                    asked.push((index, route(domain, vector)));
                    unit.set_irte(index, route(domain, vector)).unwrap();
                    routed[usize::from(device % 4)] = Some(route(domain, vector));
                }
                _ => {
                    unit.clear_irte(index).unwrap();
                    routed[usize::from(device % 4)] = None;
                }
            }
            model.assert_settled();
            let context = model.context(source).map(|context| context.id.0);
            prop_assert_eq!(context, attached[n]);
            prop_assert_eq!(model.irte(index), routed[usize::from(device % 4)]);
        }
        model.with(|state| assert!(state.routes_seen.iter().all(|seen| asked.contains(seen))));
    }
}
