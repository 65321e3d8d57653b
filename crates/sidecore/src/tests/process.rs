//! Places that come while it runs, bursts, and when to look again.
use super::*;

#[test]
fn places_come_and_what_was_there_stays() {
    let mut schedule = Schedule::new(USUAL, 0, 0);
    assert!(!schedule.poll(0, 0, 0));
    schedule.grow(1, 1);
    assert!(schedule.poll(0, 0, 0));
    schedule.grow(4, 3);
    assert!(schedule.is_polled(0) && schedule.poll(3, 2, 0) && !schedule.poll(4, 0, 0));
    // Fewer are as many as there were.
    schedule.grow(1, 1);
    assert!(schedule.is_polled(0) && schedule.is_polled(3));
}

#[test]
fn it_says_when_to_look_again() {
    let mut schedule = Schedule::new(USUAL, 2, 2);
    assert_eq!(schedule.look_again_at(5), None);
    schedule.join(0, 0);
    assert_eq!(schedule.look_again_at(5), None, "its kicks are on");
    schedule.poll(0, 0, 5);
    assert_eq!(schedule.look_again_at(5), Some(5));
    let second = USUAL.ticks_per_second;
    schedule.set_share(0, Share { requests: Some(1000), ..Share::default() });
    schedule.set_burst(0, 0);
    let mut rings = Rings([9, 9, 0, 0], 0);
    assert_eq!(schedule.next(second, &mut rings), Turn::Serve(0));
    let piece = Piece { cost: 512, bytes: 512, requests: 10 };
    assert_eq!(schedule.served(0, piece, second, &mut rings), Next::Switch);
    assert_eq!(schedule.next(second, &mut rings), Turn::Nothing);
    let again = second + second / 100;
    assert_eq!(schedule.look_again_at(second), Some(again));
    assert_eq!(schedule.next(again - 1, &mut rings), Turn::Nothing);
    assert_eq!(schedule.next(again, &mut rings), Turn::Serve(0));
    // Another one that isn't at a limit is looked at all the time.
    schedule.poll(1, 1, second);
    assert_eq!(schedule.look_again_at(second), Some(second));
}

#[test]
fn a_vm_may_have_a_burst_of_its_own() {
    let second = USUAL.ticks_per_second;
    let served = |burst: Option<u64>| {
        let mut schedule = Schedule::new(USUAL, 1, 1);
        schedule.set_share(0, Share { requests: Some(1000), ..Share::default() });
        burst.into_iter().for_each(|burst| schedule.set_burst(0, burst));
        schedule.poll(0, 0, second);
        let mut rings = Rings([9, 0, 0, 0], 0);
        let mut served = 0;
        while schedule.next(second, &mut rings) == Turn::Serve(0) {
            let piece = Piece { cost: 512, bytes: 512, requests: 1 };
            loop {
                served += 1;
                if schedule.served(0, piece, second, &mut rings) == Next::Switch {
                    break;
                }
            }
        }
        served
    };
    // What was saved up, and one that is paid for later.
    assert_eq!([served(None), served(Some(0)), served(Some(second / 10))], [11, 1, 101]);
}
