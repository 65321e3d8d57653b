//! `vm.toml`: any text. A plan that is accepted passes the check; each refusal is one line that
//! names the file and a line of it, and they come in the order of the lines.
#![no_main]

use fuzz::one_line;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match plan::file::parse_all("vm.toml", text) {
        Ok(plan) => {
            assert_eq!(plan.check(), Ok(()));
            assert!(plan.vms.iter().all(|vm| !vm.kernel.is_empty()));
            let used = |core: &u32| plan.vms.iter().any(|vm| vm.cpus.contains(core));
            assert!(!plan.sidecores.iter().any(used));
            assert!(plan.disks().all(|(_, disk)| (1..=plan::MAX_QUEUES).contains(&disk.queues)));
            let pairs = 1..=plan::MAX_PAIRS;
            assert!(plan.interfaces().all(|(_, one)| pairs.contains(&one.queues)));
            assert!(plan.served_queues().iter().all(|queues| *queues <= plan::MAX_SERVED));
        }
        Err(refusals) => {
            assert!(refusals.is_sorted_by_key(|refusal| refusal.line));
            assert_eq!(Err(&refusals[0]), plan::file::parse("vm.toml", text).as_ref());
            for refusal in refusals {
                one_line(&refusal);
                assert!((1..=text.split('\n').count()).contains(&refusal.line), "{refusal}");
                assert!(refusal.to_string().starts_with(&format!("vm.toml:{}: ", refusal.line)));
            }
        }
    }
});
