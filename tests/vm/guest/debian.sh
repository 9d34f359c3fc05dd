# Part of guest/init.sh: boots a clean Debian, in memory, with its own systemd. In: /host/in/debian.tar. Out: a service
# of that Debian runs guest/rest.sh.
mkdir /new
mount -t tmpfs -o mode=755,size=75% root /new
tar -x -f /host/in/debian.tar -C /new || reboot -f
mkdir -p /new/.vm/bin /new/host
cp /bin/busybox /rest.sh /new/.vm/
chroot /new /.vm/busybox --install -s /.vm/bin
cat > /new/etc/systemd/system/vm.service << 'END'
[Unit]
Description=The script of scripts/vm
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/.vm/bin/sh /.vm/rest.sh
END
mkdir -p /new/etc/systemd/system/default.target.wants
ln -s /etc/systemd/system/vm.service /new/etc/systemd/system/default.target.wants/
for unit in getty.target serial-getty@ttyS0.service systemd-networkd-wait-online.service; do
    ln -s /dev/null /new/etc/systemd/system/$unit
done
echo vm > /new/etc/hostname
umount /sys/kernel/tracing /sys/kernel/debug /sys/fs/bpf /dev/shm /dev/pts
for name in proc sys dev host; do mount --move /$name /new/$name; done
exec switch_root /new /sbin/init
