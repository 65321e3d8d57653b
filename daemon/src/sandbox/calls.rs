//! The system calls that are allowed, by what they are for. `docs/daemon.md` has the same table,
//! which a test compares.
//!
//! Two that look superfluous in a program of one thread aren't: glibc takes an error of `brk` for
//! success, and ends the program at one of `futex`, which unwinding calls once (a backtrace of an
//! error, of a build that has them). Without `mremap` and `mprotect` its allocator copies, and does
//! without.

/// A system call: its number and name.
pub type Call = (i64, &'static str);

/// What is served, and how: what it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Devices may come later.
    pub changes: bool,
    /// There is a control socket, or one for metrics.
    pub desks: bool,
    /// A disk is a file, accessed by io_uring.
    pub files: bool,
    /// One may come later, for which there are rings.
    pub stock: bool,
    /// Guests' memory is pinned for one.
    pub pins: bool,
    /// A disk is a file whose accesses are waited for.
    pub waits: bool,
    /// A disk is kept by an NBD server.
    pub servers: bool,
    /// One is reached over TLS, or may come later.
    pub tls: bool,
    /// A front end listens, and is connected to.
    pub connects: bool,
    /// A disk is on an NVMe controller, which is given guests' memory.
    pub controllers: bool,
    /// A switch's way out is one of the host's interfaces.
    pub interfaces: bool,
}

macro_rules! calls {
    ($($name:ident)*) => {
        &[$((libc::$name, stringify!($name))),*]
    };
}

/// Some of them, and when they are allowed.
pub struct Group {
    #[cfg_attr(not(test), expect(dead_code, reason = "the document has it"))]
    pub title: &'static str,
    pub calls: &'static [Call],
    pub when: fn(&Needs) -> bool,
}

/// Of the process that serves. `mmap` is in the first group, for memory that isn't executable.
pub const GROUPS: &[Group] = &[
    Group {
        title: "always",
        calls: calls!(
            SYS_epoll_pwait2 SYS_epoll_ctl SYS_ppoll SYS_clock_gettime SYS_setitimer
            SYS_rt_sigreturn SYS_read SYS_write SYS_accept4 SYS_recvmsg SYS_sendmsg SYS_fcntl
            SYS_statx SYS_fstatfs SYS_memfd_create SYS_ftruncate SYS_close SYS_unlink
            SYS_mmap SYS_munmap SYS_brk SYS_futex SYS_exit_group
        ),
        when: |_| true,
    },
    Group {
        title: "files, by io_uring",
        calls: calls!(SYS_io_uring_enter),
        when: |needs| needs.files || needs.stock,
    },
    Group {
        title: "files that come later or are `pinned`, by io_uring",
        calls: calls!(SYS_io_uring_register),
        when: |needs| needs.stock || needs.pins,
    },
    Group {
        title: "files, without io_uring",
        calls: calls!(SYS_preadv SYS_pwritev SYS_fdatasync SYS_fallocate),
        when: |needs| needs.waits,
    },
    Group {
        title: "a control socket or one for metrics",
        calls: calls!(SYS_getsockopt),
        when: |needs| needs.desks,
    },
    Group {
        title: "servers, front ends that listen, or devices that come later",
        calls: calls!(SYS_socket SYS_connect),
        when: |needs| needs.servers || needs.connects || needs.changes,
    },
    Group {
        title: "servers, or devices that come later",
        calls: calls!(SYS_setsockopt SYS_timerfd_settime),
        when: |needs| needs.servers || needs.changes,
    },
    Group {
        title: "servers over TLS, or devices that come later",
        calls: calls!(SYS_getrandom),
        when: |needs| needs.tls,
    },
    Group { title: "NVMe controllers", calls: calls!(SYS_ioctl), when: |needs| needs.controllers },
    Group {
        title: "interfaces",
        calls: calls!(SYS_recvmmsg SYS_sendmmsg),
        when: |needs| needs.interfaces,
    },
];

/// Of the process that opens what comes later.
pub const OPENER: &[Call] = calls!(
    SYS_recvmsg SYS_sendmsg SYS_read SYS_write SYS_close SYS_fcntl SYS_lseek SYS_ioctl
    SYS_openat SYS_statx SYS_newfstatat SYS_fstat SYS_readlink SYS_getcwd SYS_unlink
    SYS_socket SYS_connect SYS_bind SYS_listen SYS_getsockname SYS_getsockopt SYS_setsockopt
    SYS_sendto SYS_recvfrom SYS_sendmmsg SYS_poll SYS_ppoll
    SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_timerfd_create SYS_timerfd_settime SYS_memfd_create SYS_ftruncate
    SYS_mmap SYS_mprotect SYS_munmap SYS_mremap SYS_madvise SYS_brk SYS_futex
    SYS_clock_gettime SYS_gettimeofday SYS_getrandom SYS_uname SYS_sysinfo SYS_getpid
    SYS_getuid SYS_geteuid SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_sigaltstack SYS_exit_group
);

/// Of the threads that close what front ends sent.
pub const CLOSER: &[Call] = calls!(
    SYS_close SYS_shutdown SYS_futex SYS_mmap SYS_munmap SYS_brk SYS_write SYS_exit SYS_exit_group
);

/// Those of what is needed.
pub fn serving(needs: &Needs) -> Vec<Call> {
    let groups = GROUPS.iter().filter(|group| (group.when)(needs));
    groups.flat_map(|group| group.calls.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/daemon.md");

    fn names(calls: &[Call]) -> String {
        let names = calls.iter().map(|(_, name)| name.trim_start_matches("SYS_"));
        names.collect::<Vec<_>>().join(" ")
    }

    /// What people read is what is allowed.
    #[test]
    fn the_document_has_this_table() {
        for Group { title, calls, .. } in GROUPS {
            let row = format!("| {title} | {} | `{}` |", calls.len(), names(calls));
            assert!(DOCUMENT.contains(&row), "docs/daemon.md doesn't have: {row}");
        }
        for other in [OPENER, CLOSER] {
            let other = format!("{}: `{}`", other.len(), names(other));
            assert!(DOCUMENT.contains(&other), "docs/daemon.md doesn't have: {other}");
        }
    }

    #[test]
    fn there_are_thirty_at_most_where_there_is_io_uring() {
        let yes = true;
        let all = Needs {
            changes: yes,
            desks: yes,
            files: yes,
            stock: yes,
            pins: yes,
            waits: false,
            servers: yes,
            tls: false,
            connects: yes,
            controllers: false,
            interfaces: false,
        };
        let count = |needs: Needs| serving(&needs).len();
        assert_eq!(count(all), 30);
        assert_eq!(count(Needs { tls: yes, ..all }), 31);
        assert_eq!(count(Needs { tls: yes, interfaces: yes, ..all }), 33);
        assert_eq!(count(Needs { tls: yes, interfaces: yes, controllers: yes, ..all }), 34);
        assert_eq!(
            count(Needs { waits: true, files: false, stock: false, pins: false, ..all }),
            32
        );
        assert_eq!(count(Needs { controllers: yes, ..Needs::default() }), 24);
        assert_eq!(count(Needs::default()), 23);
        assert_eq!(count(Needs { files: true, ..Needs::default() }), 24);
        assert_eq!(count(Needs { files: true, pins: true, ..Needs::default() }), 25);
    }

    #[test]
    fn none_is_there_twice() {
        let all = Needs { changes: true, desks: true, stock: true, ..Needs::default() };
        let all = Needs { waits: true, ..all };
        let mut numbers: Vec<i64> = serving(&all).iter().map(|(number, _)| *number).collect();
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}
