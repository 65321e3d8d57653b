use super::*;

const WHOLE: &str = r#"
[disk.web]
file = "web.img"
socket = "web.sock"
queues = 4
read_only = true
serial = "w1"
weight = 200
limit = { iops = 20000, rate = "100M/s", burst = "100ms" }

[disk.scratch]
ram = "1G"
connect = "/run/scratch.sock"
packed = true
coalesce = false

[disk.fast]
nvme = "01:00.0"
offset = "8G"
socket = "fast.sock"

[network.web-net]
socket = "net.sock"
switch = "lan"
mac = "02:00:00:00:00:01"
vlan = 10
rate = "100M/s"
flood = "2M/s"

[host]
control = "io.control"
"#;

fn says(text: &str) -> Vec<String> {
    let wrong = parse(Path::new("io.toml"), text).expect_err("it is wrong");
    wrong.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_is_read() {
    let plan = parse(Path::new("/etc/io.toml"), WHOLE).expect("it is right");
    let [web, scratch, fast] = &plan.disks[..] else { panic!("three disks") };
    assert_eq!(
        web.backing,
        Backing::File { path: "/etc/web.img".into(), page_cache: false, raw: false, pinned: false }
    );
    assert_eq!(web.way, Way::Socket("/etc/web.sock".into()));
    let limits = Limits {
        weight: 200,
        iops: Some(20_000),
        bytes_per_second: Some(100 << 20),
        burst: Some(100_000_000),
    };
    assert_eq!((web.queues, web.read_only, &web.serial[..]), (4, true, "w1"));
    assert_eq!((web.limits, scratch.limits), (limits, Limits::default()));
    assert_eq!(scratch.way, Way::Connect("/run/scratch.sock".into()));
    assert_eq!((web.packed, scratch.packed), (false, true));
    assert_eq!((web.coalesce, scratch.coalesce), (true, false));
    let part = Nvme { address: "0000:01:00.0".into(), offset: 8 << 30, size: None };
    assert_eq!(fast.backing, Backing::Nvme(part));
    let [network] = &plan.networks[..] else { panic!("a network") };
    assert_eq!((network.vlan, network.rate), (Some(10), Some(100 << 20)));
    assert_eq!(network.flood, Some(2 << 20));
    assert_eq!(plan.host.control, Some("/etc/io.control".into()));
}

#[test]
fn every_line_that_is_wrong_is_named() {
    let text = r#"
[disk.a]
fiel = "a.img"
socket = 7
queues = 0
[disk.b]
ram = "1.5G"
socket = ""
limit = { iops = "many", bytes_per_second = 3 }
[network.c]
socket = "c"
mac = "x"
[hots]
"#;
    let expected = [
        "io.toml:3: [disk.a]: unknown key `fiel`; did you mean `file`?",
        "io.toml:4: [disk.a] socket: this is a number, but it has to be a path in quotes, such as \"web.sock\"",
        "io.toml:5: [disk.a] queues: `0` is out of range; use 1 to 64",
        "io.toml:7: [disk.b] ram: `1.5G` is no size; write a whole number with K, M, G or T, such as \"512M\" or \"1G\"",
        "io.toml:8: [disk.b] socket: the path is empty; give one such as \"web.sock\"",
        "io.toml:9: [disk.b] limit.iops: this is a string, but it has to be a whole number of requests a second, such as 20000",
        "io.toml:9: [disk.b]: unknown key `bytes_per_second` of `limit`; bytes in a second are rate = \"100M/s\"",
    ];
    let said = says(text);
    assert_eq!(said[..7], expected);
    assert!(said[7].starts_with("io.toml:12: [network.c] mac: "), "{}", said[7]);
    assert_eq!(said[8], "io.toml:13: unknown key `hots`; did you mean `host`?");
}

#[test]
fn a_flood_is_a_rate() {
    let text =
        |flood: &str| format!("[network.n]\nsocket = \"n\"\nswitch = \"lan\"\nflood = {flood}\n");
    for (flood, expected) in [
        ("\"0K/s\"", "`0K/s` stops all of it; give more, such as \"100M/s\""),
        ("10", "this is a number, but it has to be a rate in quotes, such as \"10M/s\""),
    ] {
        assert_eq!(says(&text(flood)), [format!("io.toml:4: [network.n] flood: {expected}")]);
    }
    let said = says(&text("\"many\""));
    assert!(said[0].starts_with("io.toml:4: [network.n] flood: `many` is no rate"), "{said:?}");
    let said = says(&text("\"1M/s\"\nbroadcast = \"1M/s\""));
    assert_eq!(
        said,
        [
            "io.toml:5: [network.n]: unknown key `broadcast`; frames for many others are limited by flood = \"10M/s\""
        ]
    );
}

#[test]
fn what_has_to_be_there_is_asked_for_and_what_is_twice_is_refused() {
    let text = "
[disk.a]
socket = \"s\"
[disk.b]
ram = \"1M\"
null = \"1M\"
socket = \"s\"
[network.a]
connect = \"n\"
";
    assert_eq!(
        says(text),
        [
            "io.toml:2: [disk.a]: nothing keeps it; give `file`, `nbd`, `nvme`, `ram` or `null`, such as file = \"web.img\"",
            "io.toml:4: [disk.b]: its socket s is [disk.a]'s; each device has one of its own",
            "io.toml:4: [disk.b]: more than one of `file`, `nbd`, `nvme`, `ram` and `null` keep it; leave all but one out",
            "io.toml:8: [network.a]: the name is [disk.a]'s; each device has one of its own",
            "io.toml:8: [network.a]: it has no `switch`; name one, such as switch = \"lan\", and VMs that name the same can reach each other",
        ]
    );
    assert_eq!(
        says("[vm.a]\nkernel = \"k\"\n[disk.b]\nlimits = { iops = 5 }\nbacking = \"null\"\n"),
        [
            "io.toml:1: unknown key `vm`; this is a plan for the hypervisor, which `exitless run` runs; here are tables such as [disk.web]",
            "io.toml:4: [disk.b]: unknown key `limits`; did you mean `limit`?",
            "io.toml:5: [disk.b]: unknown key `backing`; a disk in memory is ram = \"1G\", one that keeps nothing null = \"1T\"; a file has its own size",
        ]
    );
    assert!(says("[disk.\"a\\u001b\"]\nram = \"1M\"\nsocket = \"s\"")[0].contains("letters"));
    assert!(says("a = ")[0].starts_with("io.toml:1: not valid TOML"));
    assert_eq!(
        says("[disk.a]\nram = \"1M\"\n[disk.a]\nram = \"1M\"\n"),
        ["io.toml:3: `a` is given twice; each table and key is given once"]
    );
}

#[test]
fn what_is_anothers_is_said_with_its_table() {
    let text = "
[disk.a]
file = \"x.img\"
socket = \"s\"
[disk.b]
file = \"./x.img\"
read_only = true
socket = \"./s\"
[host]
control = \"c\"
metrics = \"./c\"
";
    assert_eq!(
        says(text),
        [
            "io.toml:5: [disk.b]: its socket s is [disk.a]'s; each device has one of its own",
            "io.toml:5: [disk.b]: its file x.img is [disk.a]'s; a file that is written has one table alone",
            "io.toml:11: [host] metrics: this socket is [host] control's; each has one of its own",
        ]
    );
    let readers = text.replace("\"x.img\"", "\"x.img\"\nread_only = true");
    assert_eq!(says(&readers).len(), 2);
}

#[test]
fn what_another_kind_of_disk_has_is_said_on_its_line() {
    let text = "
[disk.a]
ram = \"64M\"
socket = \"a\"
offset = \"1M\"
size = \"1G\"
timeout = \"3s\"
page_cache = true
pinned = true
raw = false
";
    let told = [
        "5: [disk.a] offset: `offset` is for `nvme` alone; leave it out",
        "6: [disk.a] size: `size` is for `nvme` alone; leave it out; a disk in memory has it in `ram`, and a file its own",
        "7: [disk.a] timeout: `timeout` is for `nbd` alone; leave it out",
        "8: [disk.a] page_cache: `page_cache` is for `file` alone; leave it out",
        "9: [disk.a] pinned: `pinned` is for `file` alone; leave it out",
        "10: [disk.a] raw: `raw` is for `file` alone; leave it out",
    ];
    assert_eq!(says(text), told.map(|told| format!("io.toml:{told}")));
}

#[test]
fn what_is_meant_is_said() {
    for (text, told) in [
        (
            "[disk]\nram = \"1M\"\nsocket = \"s\"",
            "2: [disk]: `ram` stands in no device's table; name it: [disk.web]",
        ),
        (
            "[disk.a]\nfile = \"~/x\"\nsocket = \"s\"",
            "2: [disk.a] file: `~` and variables aren't expanded; write the whole path",
        ),
        (
            "[disk.a]\nram = \"1M\"\nsocket = \"$HOME/x\"",
            "3: [disk.a] socket: `~` and variables aren't expanded; write the whole path",
        ),
        ("[net.a]\nmtu = 1500", "1: unknown key `net`; did you mean `network`?"),
        (
            "[uplink.lan]\nbridge = \"br0\"",
            "2: [uplink.lan]: unknown key `bridge`; a bridge is reached by a TAP that was put into it: tap = \"tap0\"",
        ),
        (
            "[disk.a]\nnbd = \"nbds://host/\"\nsocket = \"s\"",
            "1: [disk.a]: nbds://host/ is with TLS, and no CA is named that signs the server's certificate; add tls = { ca = \"ca.pem\" } (--tls-ca)",
        ),
    ] {
        assert_eq!(says(text), [format!("io.toml:{told}")]);
    }
}

/// Whatever else is wrong with either.
#[test]
fn an_address_is_one_stations() {
    let network = |name: &str, mac: &str, more: &str| {
        format!("[network.{name}]\nsocket = \"{name}\"\nmac = \"{mac}\"\n{more}\n")
    };
    let text = [
        network("a", "02:00:00:00:00:01", "switch = \"lan\""),
        network("b", "02:00:00:00:00:01", "switch = \"lan\"\nmtu = 1"),
        network("c", "02:00:00:00:00:01", "switch = \"other\""),
        network("d", "03:00:00:00:00:01", ""),
        network("e", "00:00:00:00:00:00", "switch = \"lan\""),
    ];
    let told = [
        "7: [network.b] mac: 02:00:00:00:00:01 is [network.a]'s at this switch; each has one of its own",
        "9: [network.b] mtu: `1` is out of range; use 1280 to 65535",
        "16: [network.d] mac: 03:00:00:00:00:01 is a group's address; a station's first byte is even",
        "20: [network.e] mac: 00:00:00:00:00:00 is no station's address; give one such as \"02:00:00:00:00:01\"",
    ];
    assert_eq!(says(&text.concat()), told.map(|told| format!("io.toml:{told}")));
}

#[test]
fn what_stops_everything_is_refused() {
    let text = "
[disk.a]
ram = \"1M\"
socket = \"s\"
limit = { rate = \"0K/s\" }
[network.b]
socket = \"t\"
switch = \"\"
rate = \"0M/s\"
";
    assert_eq!(
        says(text),
        [
            "io.toml:5: [disk.a] limit.rate: `0K/s` stops all of it; give more, such as \"100M/s\"",
            "io.toml:8: [network.b] switch: the name is empty; give one such as \"lan\"",
            "io.toml:9: [network.b] rate: `0M/s` stops all of it; give more, such as \"100M/s\"",
        ]
    );
}
