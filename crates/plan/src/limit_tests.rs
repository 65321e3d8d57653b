use super::*;
use crate::file::parse;

fn read(vm: &str) -> Result<Limit, alloc::string::String> {
    let text = alloc::format!("[host]\nsidecores = 1\n[vm.a]\nkernel = \"k\"\n{vm}\n");
    parse("vm.toml", &text).map(|plan| plan.vms[0].limit).map_err(|error| alloc::format!("{error}"))
}

#[test]
fn a_limit_is_of_requests_and_bytes_or_of_one_of_them() {
    let disk = "disk = { size = \"1M\" }\nlimit = ";
    let of = |limit| read(&alloc::format!("{disk}{limit}"));
    assert_eq!(of("{ iops = 20_000 }"), Ok(Limit { iops: Some(20_000), rate: None }));
    let both = Limit { iops: Some(1), rate: Some(10 << 20) };
    assert_eq!(of("{ rate = \"10M/s\", iops = 1 }"), Ok(both));
    assert!(read("network = { switch = \"lan\" }\nlimit = { iops = 1 }").is_ok());
}

#[test]
fn what_limits_nothing_or_everything_is_refused() {
    let disk = "disk = { size = \"1M\" }\nlimit = ";
    for (vm, wanted) in [
        ("limit = { iops = 5 }".into(), "serve this VM nothing"),
        (alloc::format!("{disk}{{}}"), "[vm.a] limit: it limits nothing; give iops, rate or both"),
        (
            alloc::format!("{disk}{{ iops = 0 }}"),
            "[vm.a] limit.iops: with iops = 0 nothing would be served",
        ),
        (
            alloc::format!("{disk}{{ rate = \"0K/s\" }}"),
            "vm.toml:6: [vm.a] limit.rate: with rate = 0 nothing would be served",
        ),
        (alloc::format!("{disk}{{ iops = -1 }}"), "`-1` is no number of requests a second"),
        (alloc::format!("{disk}{{ iops = \"1\" }}"), "a whole number of requests a second"),
        (
            alloc::format!("{disk}{{ bytes = 1 }}"),
            "unknown key `bytes` of `limit`; known are iops, rate",
        ),
        (alloc::format!("{disk}5"), "a table such as"),
    ] {
        let error = read(&vm).expect_err(&vm);
        assert!(error.contains(wanted) && error.contains("[vm.a]"), "{vm}: {error}");
    }
}

#[test]
fn sidecores_together_serve_no_more() {
    let limit = Limit { iops: Some(10), rate: Some(2) };
    assert_eq!(limit.of_each(1), limit);
    assert_eq!(limit.of_each(3), Limit { iops: Some(3), rate: Some(1) });
    assert_eq!(limit.of_each(0), limit);
    assert_eq!(Limit::default().of_each(3), Limit::default());
}
