package flex

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// Entry is what lies at one name in the plugin directory, all symbolic links
// followed.
type Entry struct {
	// Name is its name in the plugin directory.
	Name string
	// Directory says that it is a directory.
	Directory bool
	// File is what it holds under the name that its executable must have; nil
	// when there is nothing.
	File *File
}

// File is what would be executed.
type File struct {
	// Broken is why a symbolic link leads nowhere; empty when it does lead
	// somewhere.
	Broken string
	// Outside is the path where it really is, when that is not in the plugin
	// directory.
	Outside string
	// Self is the file, and Above are the plugin directory and all directories
	// between it and the file.
	Self  Owned
	Above []Owned
	// Way are the directories and symbolic links by which the plugin directory is
	// reached.
	Way []Owned
	// Outer is how many names the file has that are not in the plugin directory.
	Outer uint64
}

// Owned is who may write to something.
type Owned struct {
	Path     string
	Mode     fs.FileMode
	UID, GID uint32
}

// Others says how others than root could have put there what is started as root,
// or changed it, and "" if nobody could.
func (o Owned) Others() string {
	switch {
	case o.UID != 0:
		return fmt.Sprintf("belongs to user %d, not to root", o.UID)
	case o.Mode&0o002 != 0 || o.Mode&0o020 != 0 && o.GID != 0:
		return fmt.Sprintf("can be written to by others than root (mode %04o)", o.Mode.Perm())
	}
	return ""
}

// Diverted says how others than root could have something else found below a
// directory, or behind a symbolic link, that is on the way, and "" if nobody
// could. In a sticky directory nobody touches what is root's.
func (o Owned) Diverted() string {
	if o.UID == 0 && o.Mode&(fs.ModeSymlink|fs.ModeSticky) != 0 {
		return ""
	}
	return o.Others()
}

// Kind is what an entry of the plugin directory is.
type Kind string

// Kinds of entries.
const (
	// NoDriver is an entry that is passed over.
	NoDriver Kind = "no driver"
	// Refused is a driver that must not be executed.
	Refused Kind = "refused"
	// Found is a driver.
	Found Kind = "driver"
)

// Visible says whether a file or directory of that name is looked at, in the
// plugin directory and below: what begins with a dot is not there (F-050).
func Visible(name string) bool {
	return !strings.HasPrefix(name, ".")
}

// ExecutableName returns how the executable in a driver's directory must be
// called, also where the name of the directory is not valid.
func ExecutableName(dir string) string {
	return dir[strings.LastIndexByte(dir, '~')+1:]
}

// ReadEntry decides what an entry is. What would be executed as root must be
// such that nobody else could have put it there. A plain file in the plugin
// directory is nothing, whenever it comes, and so is a directory without an
// executable: an installer makes that first.
func ReadEntry(e Entry) (Kind, Name, volume.Because) {
	if !Visible(e.Name) || !Visible(ExecutableName(e.Name)) || !e.Directory || e.File == nil {
		return NoDriver, Name{}, volume.Because{}
	}
	refuse := func(n Name, why string) (Kind, Name, volume.Because) {
		return Refused, n, volume.Because{
			Reason: volume.ReasonFlexDriverRefused, Next: "user",
			Message: fmt.Sprintf("the driver in directory %s is not executed: %s", strconv.Quote(e.Name), why),
		}
	}
	name, err := ParseDir(e.Name)
	if err != nil {
		return refuse(Name{}, err.Error())
	}
	if why := e.File.unsafe(); why != "" {
		return refuse(name, why)
	}
	return Found, name, volume.Because{}
}

// unsafe returns why a file must not be executed, and "" if it may.
func (f *File) unsafe() string {
	switch {
	case f.Broken != "":
		return f.Broken
	case f.Outside != "":
		return fmt.Sprintf("a symbolic link leads out of the plugin directory, to %s", strconv.Quote(f.Outside))
	case !f.Self.Mode.IsRegular():
		return quoted(f.Self) + " is not a file"
	}
	for _, o := range append([]Owned{f.Self}, f.Above...) {
		if why := o.Others(); why != "" {
			return quoted(o) + " " + why
		}
	}
	for _, o := range f.Way {
		if why := o.Diverted(); why != "" {
			return quoted(o) + " " + why
		}
	}
	switch {
	case f.Outer > 0:
		return quoted(f.Self) + " has another name outside of the plugin directory, by which it may be changed (a hard " +
			"link): put a copy there"
	case f.Self.Mode&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return quoted(f.Self) + " has the setuid or setgid bit"
	case f.Self.Mode&0o100 == 0:
		return fmt.Sprintf("%s is not executable (mode %04o)", quoted(f.Self), f.Self.Mode.Perm())
	}
	return ""
}

func quoted(o Owned) string { return strconv.Quote(o.Path) }
