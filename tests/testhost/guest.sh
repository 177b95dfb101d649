#!/bin/bash
# The part of a test host that lives in namespaces.
#   guest.sh power  DISK CGROUP HOSTNAME USR   stays as long as the host is powered on, across its reboots
#   guest.sh enter  ...                        first process of the new PID namespace
#   guest.sh init   ...                        builds the root file system and becomes systemd
set -eu
role=$1; shift
disk=$1 cgroup=$2 hostname=$3 usr=$4

note_self() {   # host-side PID and start time: /proc is still this machine's, so "self" is the outer number
  local fields
  read -r -a fields </proc/self/stat
  echo "${fields[0]} ${fields[21]}" >"$disk/$1.new"
  mv "$disk/$1.new" "$disk/$1"
}

power() {
  trap '' HUP INT
  note_self supervisor
  while :; do
    status=0
    nsenter --net="$disk/netns" unshare --pid --fork --kill-child=KILL -- "$0" enter "$@" || status=$?
    find "$cgroup" -mindepth 1 -depth -type d -exec rmdir {} + 2>/dev/null || :
    echo "$(date +%FT%T.%3N) PID 1 ended with status $status"
    [ "$status" = 129 ] || break       # reboot(2) ends the first process of a PID namespace with SIGHUP
  done
}

enter() {
  echo 0 >"$cgroup/cgroup.procs"
  exec unshare --mount --uts --ipc --cgroup -- "$0" init "$@"
}

bind_from_machine() {   # before the root changes, so that sources can still be named
  while IFS=$'\t' read -r mode source target; do
    if [ -d "$source" ]; then mkdir -p ".$target"; else mkdir -p ".${target%/*}"; [ -e ".$target" ] || : >".$target"; fi
    mount --bind "$source" ".$target"
    [ "$mode" = rw ] || mount -o remount,bind,ro ".$target"
  done <"$disk/binds"
}

kernel_files() {
  mount -t proc -o nosuid,nodev,noexec proc proc
  cat /proc/sys/kernel/random/uuid >"$disk/boot_id"
  mount --bind "$disk/boot_id" proc/sys/kernel/random/boot_id      # each boot has an ID of its own
  for tree in proc/sys proc/sysrq-trigger proc/irq proc/bus; do
    [ -e "$tree" ] || continue
    mount --rbind "$tree" "$tree"; mount -o remount,bind,ro "$tree"
  done
  mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
  mount -t cgroup2 -o rw,nosuid,nodev,noexec cgroup2 sys/fs/cgroup
}

device_files() {
  mount -t tmpfs -o mode=755,nosuid,size=4m tmpfs dev
  while read -r node major minor; do mknod -m 666 "dev/$node" c "$major" "$minor"; done <<'NODES'
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
NODES
  mkdir dev/pts dev/shm dev/mqueue
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
  mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs dev/shm
  mount -t mqueue mqueue dev/mqueue
  ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd
  ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
}

init() {
  note_self pid1
  root=$disk/rootfs
  mount --make-rprivate /
  mount --bind "$root" "$root"
  cd "$root"
  mount -t overlay -o "lowerdir=$usr:/usr,upperdir=$disk/usr.up,workdir=$disk/usr.wk" testhost-usr usr
  mount -t overlay -o "lowerdir=/etc,upperdir=$disk/etc.up,workdir=$disk/etc.wk" testhost-etc etc
  kernel_files
  device_files
  mount -t tmpfs -o mode=755,nosuid,nodev tmpfs run; mkdir run/lock
  mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs tmp
  bind_from_machine
  hostname "$hostname"
  pivot_root . .
  umount -l .
  cd /
  exec env -i container=testhost TERM=dumb LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /usr/lib/systemd/systemd --system
}

"$role" "$@"
