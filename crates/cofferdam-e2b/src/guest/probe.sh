# Prints the measurements as the user of programs, one NAME=VALUE in each line.
echo "uid=$(id -u)"
echo "processors=$(nproc)"
while read -r name value _; do
	[ "$name" != MemTotal: ] || echo "memory_kib=$value"
done </proc/meminfo
df -Pk /workspace 2>/dev/null | while read -r _ size _; do echo "disk_kib=$size"; done
[ -d /workspace ] && [ ! -L /workspace ] && echo workspace=yes
[ -w /workspace ] && echo writable=yes
sudo -n true >/dev/null 2>&1 && echo root=yes
echo "path=$PATH"
echo "home=$HOME"
exit 0
