package mount8

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/doors"
)

// ignored are options that mean nothing here: they are for mount(8), fstab(5) and systemd, which pass some of them on.
var ignored = []string{ //nolint:gochecknoglobals // a table of constants
	"", "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "async",
}

// own is the prefix of options that only volplane has. mount(8) keeps to itself what begins with x-.
const own = "volplane."

// read reads the options of a mount. sloppy says that unknown ones are ignored.
func (c *Call) read(text string, sloppy bool) error {
	var host []string
	for option := range strings.SplitSeq(text, ",") {
		if means(option) {
			if err := c.readOne(option, sloppy, &host); err != nil {
				return err
			}
		}
	}
	if c.Create && c.Size.Sign() <= 0 {
		return fmt.Errorf("%w: volplane.create needs volplane.size=, such as 10Gi", ErrUsage)
	}
	var err error
	c.Options, err = decide.HostOptions(strings.Join(host, ","))
	return err
}

// means says whether an option means something here.
func means(option string) bool {
	return !slices.Contains(ignored, option) && !strings.HasPrefix(option, "x-") && !strings.HasPrefix(option, "comment=")
}

// readOne reads one option; host are those of the mount itself.
func (c *Call) readOne(option string, sloppy bool, host *[]string) error {
	_, bad := decide.HostOptions(option)
	ours, isOwn := strings.CutPrefix(option, own)
	switch {
	case isOwn:
		known, err := c.readOwn(option, ours, host)
		if err != nil && (known || !sloppy) {
			return err
		}
	case bad == nil:
		*host = append(*host, option)
	case wantsSubdir(option):
		return errSubdir
	case option == "remount":
		return fmt.Errorf("%w: remount: unmount it, and mount it with other options", ErrUsage)
	case !sloppy:
		return fmt.Errorf("%w: unknown option %.80q: use %s, and volplane.{suid,dev,node=,timeout=,kubeconfig=,create,"+
			"size=,class=}", ErrUsage, option, strings.Join(decide.HostOptionWords(), ", "))
	}
	return nil
}

// readOwn reads one of volplane's options. The words suid and dev have a prefix because mount(8) passes on only their
// opposites.
func (c *Call) readOwn(option, ours string, host *[]string) (known bool, err error) {
	name, value, _ := strings.Cut(ours, "=")
	switch name {
	case "suid", "dev":
		*host = append(*host, name)
	case "node":
		c.Node = value
	case "kubeconfig":
		c.Kubeconfig = value
	case "create":
		c.Create = true
	case "class":
		c.Class = value
	case "size":
		c.Size, err = doors.ParseSize(value)
	case "timeout":
		if c.Timeout, err = time.ParseDuration(value); err == nil && c.Timeout < 0 {
			err = errors.New("it is negative")
		}
	default:
		return false, fmt.Errorf("%w: unknown option %.80q", ErrUsage, option)
	}
	if err != nil {
		err = fmt.Errorf("%w: option %.80q: %w", ErrUsage, option, err)
	}
	return true, err
}
