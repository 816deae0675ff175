# Makes the workspace: ACCESS USER, where ACCESS is rw or ro.
umask 022
mkdir -p /workspace || exit 1
if [ "$1" = rw ]; then
	chown -- "$2" /workspace 2>/dev/null
	chmod u+rwx /workspace 2>/dev/null
else
	chown 0:0 /workspace 2>/dev/null
	chmod 0555 /workspace 2>/dev/null
fi
exit 0
