#!/bin/busybox sh
# Runs after guest/init.sh: loads the stand-in driver, runs the script, and copies out what both left. In: /host. Out:
# /host/out, and the script's status in /host/status. The machine ends with it.
. /host/in/settings
if [ "$USERLAND" != no ]; then PATH=/.vm/bin; fi
mkdir -p /root /tmp /out /vm
for where in /out /vm; do mount -t tmpfs -o mode=1777 tmpfs $where; done
# What was built may lie in the host's /tmp.
if [ "$USERLAND" != yes ]; then mount -t tmpfs -o mode=1777 tmpfs /tmp; fi
if [ "$USERLAND" = debian ]; then PATH=/usr/sbin:/usr/bin:/.vm/bin; fi
chmod 755 /vm
cp -a /host/in/files/. /vm/
if [ "$DRIVER" != none ]; then
    insmod /host/in/driver/nvidia.ko $OPTIONS && insmod /host/in/driver/nvidia-modeset.ko &&
        insmod /host/in/driver/nvidia-uvm.ko || echo "VM: the stand-in driver did not load" > /dev/console
    mknod -m 666 /dev/nvidiactl c 195 255
    mknod -m 666 /dev/nvidia0 c 195 0
    mknod -m 666 /dev/nvidia-modeset c 195 254
    major=$(awk '$2 == "nvidia-uvm" { print $1 }' /proc/devices)
    mknod -m 666 /dev/nvidia-uvm c "$major" 0
    mknod -m 666 /dev/nvidia-uvm-tools c "$major" 1
fi
cd /vm
# Straight into the folder that we share: what was said is there even if the machine hangs.
timeout -s KILL "$LIMIT" sh /host/in/script > /host/out/output.txt 2>&1 < /dev/null
status=$?
if [ $status -eq 137 ]; then
    status=124
    ps > /out/ps.txt
    echo l > /proc/sysrq-trigger
    echo w > /proc/sysrq-trigger
fi
dmesg > /out/dmesg.txt
cp -r /out/. /host/out/
sync
echo $status > /host/status
sync
reboot -f
