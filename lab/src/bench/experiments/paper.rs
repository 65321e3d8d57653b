//! What the ELI paper reports, for quoting beside our figures. Its machine: Xeon X5570
//! at 2.93 GHz, Emulex 10 GbE, one core, Linux 2.6.35 in guest and host, KVM.
//!
//! Two kinds of figures, told apart wherever they are shown. *Printed*: in the text of
//! the paper's CACM version (2016). *From the full version*: in Tables 1 and 2 of the
//! ASPLOS version (2012), which weren't at hand; they agree with every ratio, range and
//! difference that the CACM text prints.

/// Note of a section with printed figures.
pub const PRINTED: &str = "ELI paper, its text";
/// Note of a section with figures of the full version.
pub const FULL: &str = "ELI paper, full version's tables, at second hand: their ratios, ranges and differences are in its text";

/// Throughput of one program.
pub struct Throughput {
    /// Baseline device assignment, as a fraction of bare metal. Printed.
    pub baseline: f64,
    /// With ELI. Printed.
    pub eli: f64,
}

/// netperf TCP stream.
pub const NETPERF: Throughput = Throughput { baseline: 0.60, eli: 0.98 };
/// Apache.
pub const APACHE: Throughput = Throughput { baseline: 0.65, eli: 0.97 };
/// memcached.
pub const MEMCACHED: Throughput = Throughput { baseline: 0.60, eli: 1.00 };

/// A program's execution breakdown: baseline, ELI's delivery alone, ELI, bare metal. From
/// the full version.
pub struct Breakdown {
    /// Exits per second.
    pub exits: [f64; 3],
    /// Part of the time in the guest.
    pub guest: [f64; 3],
    /// Device interrupts per second.
    pub interrupts: [f64; 4],
    /// What the next one counts.
    pub unit: &'static str,
    /// Work done per second.
    pub throughput: [f64; 4],
}

/// netperf TCP stream.
pub const NETPERF_BREAKDOWN: Breakdown = Breakdown {
    exits: [102_222.0, 43_832.0, 764.0],
    guest: [0.69, 0.94, 0.99],
    interrupts: [48_800.0, 42_600.0, 48_700.0, 48_400.0],
    unit: "Mb/s",
    throughput: [3_145.0, 4_682.0, 5_119.0, 5_245.0],
};
/// Apache.
pub const APACHE_BREAKDOWN: Breakdown = Breakdown {
    exits: [90_506.0, 64_187.0, 1_118.0],
    guest: [0.67, 0.89, 0.98],
    interrupts: [36_400.0, 61_500.0, 66_500.0, 68_900.0],
    unit: "requests/s",
    throughput: [7_729.0, 10_249.0, 11_480.0, 11_875.0],
};
/// memcached.
pub const MEMCACHED_BREAKDOWN: Breakdown = Breakdown {
    exits: [123_134.0, 123_402.0, 1_001.0],
    guest: [0.60, 0.83, 0.98],
    interrupts: [59_400.0, 120_500.0, 154_500.0, 155_900.0],
    unit: "requests/s",
    throughput: [112_299.0, 153_617.0, 186_364.0, 186_824.0],
};

/// ELI's improvement of netperf's stream over the baseline, in per cent, where the text
/// gives it. Printed.
pub mod improvement {
    /// As it was run for Figure 3.
    pub const PLAIN: f64 = 63.0;
    /// Cycles for each byte there under the baseline: its clock by its throughput.
    pub const PLAIN_CYCLES: f64 = 2_930.0 * 8.0 / super::NETPERF_BREAKDOWN.throughput[0];
    /// At this much computation, in cycles for each byte, …
    pub const COMPUTING_CYCLES: f64 = 60.0;
    /// … it was still this and more.
    pub const COMPUTING: f64 = 25.0;
    /// With one interrupt in this many microseconds at most, …
    pub const COALESCING_MICROSECONDS: f64 = 96.0;
    /// … still this.
    pub const COALESCING: f64 = 10.0;
}

/// Microseconds of a UDP request and its response on bare metal. From the full version.
pub const LATENCY_BARE: f64 = 27.93;
/// What baseline device assignment adds. Printed.
pub const LATENCY_BASELINE: f64 = 8.21;
/// What ELI adds. Printed.
pub const LATENCY_ELI: f64 = 0.58;

#[cfg(test)]
mod tests {
    use super::*;

    /// What the CACM text prints of the full version's figures.
    #[test]
    fn the_full_versions_figures_fit_the_printed_ones() {
        let all = [
            (&NETPERF, &NETPERF_BREAKDOWN, 63.0),
            (&APACHE, &APACHE_BREAKDOWN, 49.0),
            (&MEMCACHED, &MEMCACHED_BREAKDOWN, 66.0),
        ];
        for (printed, full, improvement) in all {
            let [baseline, _, eli, bare] = full.throughput;
            assert!((baseline / bare - printed.baseline).abs() < 0.006);
            assert!((eli / bare - printed.eli).abs() < 0.006);
            assert!((100.0 * (eli / baseline - 1.0) - improvement).abs() < 0.6);
            assert!((0.60..=0.69).contains(&full.guest[0]) && full.guest[2] >= 0.98);
            assert!((90_506.0..=123_134.0).contains(&full.exits[0]));
            assert!((764.0..=1_118.0).contains(&full.exits[2]));
        }
    }
}
