#!/bin/busybox sh
# What runs first inside a machine of scripts/vm, as /init of its initramfs. In: the folder that the machine shares with
# its host (settings, script, files, driver). Out: guest/rest.sh runs next: in the initramfs; or, with --userland, in
# the files of the host, read only, under a layer that is discarded with the machine; or, with --debian, in a Debian
# that guest/debian.sh boots.
/bin/busybox --install -s /bin
export PATH=/bin:/vm HOME=/root TMPDIR=/tmp
mkdir -p /proc /sys /dev /host /etc
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
mount -t bpf bpf /sys/fs/bpf
ip link set lo up
for module in /modules/*; do insmod "$module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 host /host || reboot -f
. /host/in/settings
if [ "$USERLAND" = no ]; then
    echo 'root:x:0:0:root:/root:/bin/sh' > /etc/passwd
    cp -a /host/in/root/. /
    exec /rest.sh
fi

if [ "$USERLAND" = debian ]; then . /debian.sh; fi

mkdir /lower /layer /new
# Nobody changes a file of the host while a machine has it: what was read once is not asked for again.
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose userland /lower || reboot -f
mount -t tmpfs -o mode=755 layer /layer
mkdir /layer/up /layer/work
mount -t overlay -o lowerdir=/lower,upperdir=/layer/up,workdir=/layer/work overlay /new || reboot -f
for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sf "/proc/self/${name#*:}" "/dev/${name%%:*}"; done
mkdir -p /new/.vm/bin /new/host
cp /bin/busybox /rest.sh /new/.vm/
# What lies beneath is the other kernel's: whoever takes these away is to see nothing.
for name in proc sys; do mount -t tmpfs nothing /new/$name; done
for name in proc sys dev host; do mount --move /$name /new/$name; done
chroot /new /.vm/busybox --install -s /.vm/bin
mount -t tmpfs -o mode=755 tmpfs /new/run
# Accounts of its own, since those of the host may not be readable; and a name that is found without a network.
for name in passwd group; do cp /new/etc/$name /new/etc/$name.new && mv /new/etc/$name.new /new/etc/$name; done
for name in shadow gshadow sudoers; do rm -f /new/etc/$name; done
rm -rf /new/etc/sudoers.d
mkdir -m 755 /new/etc/sudoers.d
cut -d: -f1 /new/etc/passwd | sed 's/$/:*:19000:0:99999:7:::/' > /new/etc/shadow
cut -d: -f1 /new/etc/group | sed 's/$/:*::/' > /new/etc/gshadow
printf 'root ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n' > /new/etc/sudoers
chmod 600 /new/etc/shadow /new/etc/gshadow
chmod 440 /new/etc/sudoers
printf '127.0.0.1 localhost vm\n' > /new/etc/hosts.new && mv /new/etc/hosts.new /new/etc/hosts
hostname vm
exec switch_root /new /.vm/bin/sh /.vm/rest.sh
