# Part of tests/package/machine.py: installs, starts, scrapes, upgrades, removes and purges the package in a clean Debian
# with systemd, as root in a machine of scripts/vm. In /vm: one.deb; two.deb, a later version; image/, the root folder
# of the container image; the stand-in CUDA libraries, and a program that uses them. Out: a line for each step; the
# first that fails ends the script with status 1. /out/before and /out/after list the files of the machine.

step() { printf '%6.1f  %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*"; }
die() {
    step "FAILED: $*"
    journalctl --no-pager -u gpurec -u container | tail -n 40
    exit 1
}

# get PORT PATH
get() {
    exec 3<> "/dev/tcp/127.0.0.1/$1" || return
    printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3
    cat <&3
    exec 3>&-
}

# within SECONDS COMMAND...
within() {
    local until=$((SECONDS + $1))
    until "${@:2}" > /dev/null 2>&1; do
        ((SECONDS < until)) || return 1
        sleep 1
    done
}

# Lists the files of the machine, without logs, caches, state of timers, and dpkg's database. dpkg's files of each package
# (/var/lib/dpkg/info) are in the list.
files() {
    find / -xdev \( -path /var/log -o -path /var/cache -o -path /var/tmp -o -path /root \) -prune -o -printf '%y %m %U %p\n' |
        grep -vE ' /var/lib/dpkg/(status|available|lock|triggers|updates)|/var/lib/systemd/(timers|timesync|random-seed)' |
        sort -k4
}

stand_in() {
    exec setpriv --reuid 33 --regid 33 --clear-groups nice -n 19 \
        env LD_LIBRARY_PATH=/vm STANDIN_KERNEL_US=20000 /vm/program --loops 1000000
}
launches() { get "$1" /metrics | grep -E '^gpurec_launches_total\{.*comm="program".*\} [1-9]'; }
devices() { get "$1" /metrics | grep '^gpurec_device_used_bytes'; }
dumped() { compgen -G "/var/lib/gpurec/node-*-$1.jsonl.zst"; }

chmod 755 /vm /vm/program
files > /out/before

step "install"
dpkg -i /vm/one.deb || die "dpkg -i"
[[ $(gpurec --version) == gpurec\ * ]] || die "gpurec --version"
systemctl is-enabled -q gpurec && die "the service is enabled by the installation"
systemctl is-active -q gpurec && die "the service is started by the installation"

step "start, without a GPU and without a driver"
systemctl enable --now gpurec || die "systemctl enable --now"
systemctl is-active -q gpurec || die "the service is not active"
get 9400 /healthz | grep -q '^ok' || die "/healthz, as soon as the service is active"
pid=$(systemctl show -P MainPID gpurec)
[[ $(stat -c %u "/proc/$pid") -ne 0 ]] || die "it runs as root"
step "capabilities while it records: $(sed -n 's/^CapEff:\t//p' "/proc/$pid/status")"
systemd-analyze security --no-pager gpurec | tail -n 1

step "scrape"
stand_in > /dev/null 2>&1 &
program=$!
within 180 launches 9400 || die "no launches in the metrics"
launches 9400

step "dump on request, and when a program is killed"
dump=$(gpurec dump) || die "gpurec dump"
gpurec summary "$dump" | grep -E 'Kernel launches|^Recording' || die "gpurec summary $dump"
kill -KILL $program
wait $program 2> /dev/null
within 180 dumped exit || die "no dump after a program was killed"

step "upgrade"
sed -i 's/127.0.0.1:9400/127.0.0.1:9401/' /etc/default/gpurec
# The later service finds the stand-in for NVML.
mkdir -p /run/systemd/system/gpurec.service.d
printf '[Service]\nEnvironment=LD_LIBRARY_PATH=/vm\n' > /run/systemd/system/gpurec.service.d/nvml.conf
sha256sum /var/lib/gpurec/*dump*.zst /var/lib/gpurec/*exit*.zst > /tmp/kept
dpkg -i /vm/two.deb < /dev/null || die "dpkg -i of a later version"
systemctl is-active -q gpurec || die "the service is not active after the upgrade"
[[ $(systemctl show -P MainPID gpurec) -ne $pid ]] || die "the service was not started again"
get 9401 /metrics | grep -q '^gpurec_launches_total' || die "the edited /etc/default/gpurec is not in force"
within 60 devices 9401 || die "no figures of NVML in the metrics"
rm -r /run/systemd/system/gpurec.service.d
systemctl daemon-reload
sha256sum -c --quiet /tmp/kept || die "the upgrade lost dumps"
dumped end || die "the recorder of the earlier version wrote no last dump"

step "remove"
dpkg -r gpurec || die "dpkg -r"
systemctl is-active -q gpurec && die "the service still runs"
[[ ! -e /usr/bin/gpurec ]] || die "/usr/bin/gpurec is still there"
grep -q 9401 /etc/default/gpurec || die "/etc/default/gpurec is gone"
sha256sum -c --quiet /tmp/kept || die "the removal lost dumps"

step "purge"
dpkg --purge gpurec || die "dpkg --purge"
systemctl daemon-reload
files > /out/after
diff /out/before /out/after || die "purge leaves files, or removes files that are not its own"
systemctl list-unit-files gpurec.service | grep -q '^gpurec' && die "the unit is still known"
getent passwd gpurec && die "a user is left"

step "the image, with the capabilities of the DaemonSet"
cat > /run/systemd/system/container.service << END
[Service]
RootDirectory=/vm/image
MountAPIVFS=yes
PrivateTmp=no
ProtectSystem=strict
BindReadOnlyPaths=/sys/kernel/tracing
CapabilityBoundingSet=$CAPABILITIES
NoNewPrivileges=yes
ExecStart=$COMMAND
END
systemctl daemon-reload
systemctl start container || die "the container does not start"
within 180 get 9400 /healthz || die "the container serves no metrics"
stand_in > /dev/null 2>&1 &
program=$!
within 180 launches 9400 || die "no launches in the metrics of the container"
launches 9400
kill $program
systemctl stop container

step "passed"
