#!/busybox sh
# The first process of the machine: loads what the disks need, and goes on in the root with what run.sh asked for.
b=/busybox
$b mkdir -p /proc /new /dev
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
echo "acp-vm: up"
while read -r module; do
    $b insmod "/modules/${module##*/}" || echo "acp-vm: $module is not loaded"
done </modules.list
tries=0
until [ -b /dev/vdb ] || [ $tries -ge 100 ]; do
    $b usleep 100000
    tries=$((tries + 1))
done
$b mount -t ext4 /dev/vda /new
$b mount -t ext4 /dev/vdb /new/acp
$b mount -o move /dev /new/dev
next=$($b sed -n 's/.*acp\.init=\([^ ]*\).*/\1/p' /proc/cmdline)
$b umount /proc
exec $b switch_root /new "$next"
