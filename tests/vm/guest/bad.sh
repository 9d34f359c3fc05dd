# What can be wrong. Each recording's trace, words and exit status are for the test to judge.
truth=/proc/driver/nvidia/standin_counts
quick=--kernel-backend=kprobe.multi
export STANDIN_KERNEL_US=400 GPUREC_STANDIN_DRIVER=1
record() {
    name=$1
    shift
    echo reset > $truth
    gpurec -o /out/$name.jsonl "$@" > /out/$name.txt 2>&1
    echo "$name $? at $(cut -d' ' -f1 /proc/uptime) s"
    cp $truth /out/$name.truth
}
load() {
    for module in nvidia nvidia-modeset nvidia-uvm; do insmod /host/in/driver/$module.ko || echo "$module did not load"; done
}
unload() {
    for module in nvidia_uvm nvidia_modeset nvidia; do rmmod $module || echo "$module did not unload"; done
}

record nothing $quick --hook nvidia_nosuch --hook 'zzz*' --hook nosuch:event -- ./ioctls
record many $quick --hook '*' -- ./ioctls
record forbidden $quick --hook rcu_read_unlock_strict --hook bpf_get_current_pid_tgid --hook do_int3 \
    --hook __pfx_nvidia_mmap -- ./ioctls
record own $quick --hook 'uvm_*migrate*' --hook nvidia_mmap --hook nv_add_mapping_context_to_file \
    --hook irq:irq_handler_entry -- sh /vm/work.sh
record all --kernel=all $quick -- sh /vm/work.sh
record some --kernel=memory,scheduler $quick -- sh /vm/work.sh
record nonsense --kernel=nonsense -- ./ioctls

echo 2 > /proc/sys/kernel/kptr_restrict
record hidden --kernel -- ./ioctls
echo 0 > /proc/sys/kernel/kptr_restrict

# A program that was there before.
./program --loops 200 > /out/running.txt 2>&1 &
running=$!
sleep 1
record pid --kernel $quick --duration 2 --pid $running
kill $running
wait $running

# Killed without a chance to clean up.
gpurec --kernel -o /out/killed.jsonl -- sleep 100 > /out/killed.txt 2>&1 &
killed=$!
while ! grep -q '"exec"' /out/killed.jsonl 2> /dev/null; do sleep 1; done
cp /sys/kernel/tracing/enabled_functions /out/hooked_before
kill -9 $killed
wait $killed
sleep 3
cat /sys/kernel/tracing/enabled_functions /sys/kernel/debug/kprobes/list /sys/kernel/tracing/uprobe_events \
    /sys/kernel/tracing/kprobe_events > /out/left_behind
kill -9 $(pidof sleep) 2> /dev/null

# Goes while we record.
gpurec --kernel $quick -o /out/unload.jsonl -- sh -c './ioctls; sleep 3; touch /tmp/first; sleep 8' > /out/unload.txt 2>&1 &
while ! [ -e /tmp/first ]; do sleep 1; done
unload > /out/unload_said 2>&1
wait
rm /tmp/first
load > /dev/null 2>&1
gpurec --kernel --kernel-backend=kprobe -o /out/unload_kprobe.jsonl -- sh -c './ioctls; touch /tmp/first; sleep 12' > /out/unload_kprobe.txt 2>&1 &
while ! [ -e /tmp/first ]; do sleep 1; done
unload > /out/unload_kprobe_said 2>&1
wait

# Not there, and comes while we record.
unload > /dev/null 2>&1
record absent --kernel -- sh -c 'sleep 1'
gpurec --kernel $quick -o /out/load.jsonl -- sh -c 'touch /tmp/second; sleep 6; ./ioctls' > /out/load.txt 2>&1 &
while ! [ -e /tmp/second ]; do sleep 1; done
load
wait
cp $truth /out/load.truth
