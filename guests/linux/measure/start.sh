# What every guest's init begins with: it is read by them with `.`, as the first
# thing after the kernel. Sets up the least a Linux user space needs, and gives
# `parameter`, `finish`, `load_drivers`, `take_clock`, `wait_for_clock`, `wait_for_disk`,
# `measure_fio` and `measure_mix`.
export PATH=/bin:/usr/bin:/usr/sbin
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mkdir /dev/shm
/bin/busybox mount -t tmpfs shm /dev/shm
exec </dev/console >/dev/console 2>&1
/bin/busybox dmesg -n 1

# A parameter of ours from the kernel command line, or its default.
parameter() {
    value=$2
    for word in $(/bin/busybox cat /proc/cmdline); do
        case $word in exitless.$1=*) value=${word#*=} ;; esac
    done
    echo "$value"
}

finish() {
    [ -z "$1" ] || echo "@exitless failed $1"
    /bin/busybox poweroff -f
    /bin/busybox sleep 60
}

# Loads the driver of each device that has one here: of the PCI bus first, then of the virtio
# devices that come with it.
load_drivers() {
    for bus in pci virtio; do
        for device in /sys/bus/$bus/devices/*; do
            /bin/busybox modprobe "$(/bin/busybox cat "$device/modalias")" 2>/dev/null
        done
    done
}

# The same clock for every guest that is compared: what the kernel would choose by
# itself depends on which watchdog for the TSC the machine offers.
take_clock() {
    clock=$(parameter clock acpi_pm)
    sources=/sys/devices/system/clocksource/clocksource0
    echo "$clock" 2>/dev/null >$sources/current_clocksource ||
        finish "clock source '$clock' isn't available: $(/bin/busybox cat $sources/available_clocksource)"
}

# The kernel measures the TSC a second after it has booted, takes it as its clock, and says so; or,
# if the TSC is no good, neither: then some seconds are enough.
wait_for_clock() {
    tries=0
    while [ $tries -lt 50 ] && [ "$(/bin/busybox cat /sys/devices/system/clocksource/clocksource0/current_clocksource)" != tsc ]; do
        tries=$((tries + 1))
        /bin/busybox usleep 100000
    done
}

wait_for_disk() {
    disk=${1:-$(parameter disk nvme0n1)}
    tries=0
    while [ ! -b "/dev/$disk" ]; do
        tries=$((tries + 1))
        [ $tries -le 100 ] || finish "no disk /dev/$disk after 10 s: the kernel found no such one"
        /bin/busybox usleep 100000
    done
}

# A job for each disk. exitless.guest is for two guests that share a core (`measure -g`).
measure_fio() {
    disks=$(parameter disk nvme0n1)
    jobs=
    for one in $(IFS=,; set -- $disks; echo "$@"); do
        wait_for_disk "$one"
        jobs="$jobs --name=$one --filename=/dev/$one"
    done
    guest=$(parameter guest "")
    measure -c "disk:$disks" -d "$disks" -t workload=fio ${guest:+-g "$guest"} \
        -w "$(parameter warmup 2000)" -s "$(parameter short 2000)" -l "$(parameter long 12000)" -n "$(parameter pairs 4)" \
        fio --name=global rest:--thinktime=3600s --ioengine="$(parameter engine libaio)" --direct=1 \
        --rw=randread --bs="$(parameter block 4k)" --iodepth="$(parameter depth 1)" --numjobs=1 --norandommap \
        --time_based --runtime=86400 --eta=never --disk_util=0 --output=/dev/null $jobs
}

# What servers do, after filebench's personalities: files of mixed sizes, pages, a mail spool that
# is flushed after every fourth write, a log that is after each. All jobs on one disk at once.
measure_mix() {
    wait_for_disk
    measure -c "mixed:$disk" -d "$disk" -t workload=mix \
        -w "$(parameter warmup 500)" -s "$(parameter short 500)" -l "$(parameter long 2500)" -n "$(parameter pairs 4)" \
        fio --name=global rest:--thinktime=3600s --filename="/dev/$disk" --ioengine=libaio --direct=1 --norandommap \
        --time_based --runtime=86400 --eta=never --disk_util=0 --output=/dev/null \
        --name=files --rw=randrw --rwmixread=67 --bssplit=4k/50:16k/30:64k/20 --iodepth=8 \
        --name=pages --rw=randread --bs=16k --iodepth=4 \
        --name=mail --rw=randrw --rwmixread=50 --bssplit=4k/60:16k/40 --iodepth=2 --fsync=4 \
        --name=log --rw=write --bs=4k --iodepth=1 --fdatasync=1
}
