# What every recording in the machine records: programs that call CUDA, one that asks for what a driver refuses, and
# what comes without being asked for.
truth=/proc/driver/nvidia/standin_counts
export STANDIN_KERNEL_US=400 GPUREC_STANDIN_DRIVER=1
./program --loops 1
./program --loops 1 --threads 3
./ioctls 1
echo 'xid 31 MMU Fault, in the test' > $truth
echo fault > $truth
echo interrupt > $truth
# Its bottom half comes when the kernel gets to it, and a recording ends with its command.
usleep 300000
