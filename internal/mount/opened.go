package mount

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Opened are devices, as Point.Device has them, that processes have in use without any mount of theirs.
type Opened map[string]bool

// FindOpened returns which devices are in use by descriptors: those of filesystems and block devices that were opened
// by way of mounts at paths that are ours, and those of filesystems whose mounts are visible in no namespace, such as a
// clone that is not mounted yet. A loop device on an open file is such a use, and so is everything that holds a block
// device. An error means that there may be uses that were not found.
func FindOpened(ctx context.Context, ours func(path string) bool) (Opened, error) {
	tables, err := readTable()
	if err != nil {
		return nil, err
	}
	others, err := otherTables(ctx, tables)
	if err != nil {
		return nil, fmt.Errorf("find open files: %w", err)
	}
	o := openSearch{ours: map[uint64]string{}, known: map[uint64]bool{}, found: Opened{}}
	for _, i := range tables {
		o.known[uint64(i.ID)] = true
		if ours(i.Mountpoint) {
			o.ours[uint64(i.ID)] = placeOf(i).device
		}
	}
	for _, i := range others {
		o.known[uint64(i.ID)] = true
	}
	if err := o.processes(ctx); err != nil {
		return nil, fmt.Errorf("find open files: %w", err)
	}
	return o.found, o.backing(ours)
}

type openSearch struct {
	// ours are the mounts at paths of ours and their devices, known those that some process sees.
	ours  map[uint64]string
	known map[uint64]bool
	found Opened
}

// processes inspects all processes.
func (o openSearch) processes(ctx context.Context) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := "/proc/" + e.Name()
		files, err := os.ReadDir(dir + "/fd")
		if err != nil && !isGone(err) {
			return err
		}
		o.look(dir + "/cwd")
		o.look(dir + "/root")
		for _, f := range files {
			o.look(dir + "/fd/" + f.Name())
		}
	}
	return nil
}

// look inspects the target of a link in /proc, without a request to the filesystem's server. A process may have ended.
func (o openSearch) look(link string) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT,
		unix.STATX_TYPE|unix.STATX_MNT_ID, &st)
	if err != nil || st.Mask&unix.STATX_MNT_ID == 0 {
		return
	}
	device, isOurs := o.ours[st.Mnt_id]
	switch {
	case isOurs && st.Mode&unix.S_IFMT == unix.S_IFBLK:
		o.found[fmt.Sprintf("%d:%d", st.Rdev_major, st.Rdev_minor)] = true
	case isOurs:
		o.found[device] = true
	case !o.known[st.Mnt_id]:
		o.found[fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor)] = true
	}
}

// backing adds files that loop devices have opened through our paths: no process has them open.
func (o openSearch) backing(ours func(path string) bool) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("find loop devices: %w", err)
	}
	for _, file := range files {
		path, err := os.ReadFile(file)
		if err != nil || !ours(strings.TrimSpace(string(path))) {
			continue // it was just detached, or belongs to another file
		}
		o.look(strings.TrimSpace(string(path)))
	}
	return nil
}

// DeviceOf returns the number of a block device, as Point.Device has it.
func DeviceOf(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("stat device %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", fmt.Errorf("%s is not a block device", path)
	}
	return fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)), nil
}

// Parts returns the device itself and its partitions, and whether one of them is held: by a device built on it, such as
// one of device-mapper, or as swap space. It returns nothing if the path is not a block device, or is gone.
func Parts(device string) (all []string, held bool) {
	dir := "/sys/dev/block/" + device
	all = []string{device}
	dirs := []string{dir}
	partitions, _ := filepath.Glob(dir + "/*/partition")
	for _, p := range partitions {
		if number, err := os.ReadFile(filepath.Join(filepath.Dir(p), "dev")); err == nil {
			all = append(all, strings.TrimSpace(string(number)))
		}
		dirs = append(dirs, filepath.Dir(p))
	}
	for _, dir := range dirs {
		holders, _ := os.ReadDir(dir + "/holders")
		held = held || len(holders) > 0
	}
	swaps, _ := os.ReadFile("/proc/swaps")
	for line := range strings.Lines(string(swaps)) {
		path, _, _ := strings.Cut(line, " ")
		if number, err := DeviceOf(path); err == nil {
			held = held || slices.Contains(all, number)
		}
	}
	return all, held
}
