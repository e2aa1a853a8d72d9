package mount

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// KeepApart prepares the unmounting of what somebody else has mounted at some
// paths: of these mounts it makes those private that are peers of others, as
// mount --rbind makes them of a shared tree. Else what is unmounted in one would
// be gone in the other, too. It may be repeated, and is to be as soon as one is
// unmounted that another one was hidden by.
func KeepApart(paths []string) error {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return fmt.Errorf("read mount table: %w", err)
	}
	outside := map[string]bool{}
	for _, i := range infos {
		if !slices.Contains(paths, i.Mountpoint) {
			outside[peersOf(i)] = true
		}
	}
	for _, i := range infos {
		peers := peersOf(i)
		if peers == "" || !outside[peers] || !slices.Contains(paths, i.Mountpoint) {
			continue
		}
		if err := unix.Mount("", i.Mountpoint, "", unix.MS_PRIVATE, ""); err != nil {
			return fail("make private", i.Mountpoint, err)
		}
	}
	return nil
}

// peersOf returns the number of those with which a mount shares what is mounted
// in it; "" says that it shares nothing.
func peersOf(i *mountinfo.Info) string {
	for f := range strings.FieldsSeq(i.Optional) {
		if number, found := strings.CutPrefix(f, "shared:"); found {
			return number
		}
	}
	return ""
}
