package flex

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// Entry is one entry of the plugin directory, with all symbolic links followed.
type Entry struct {
	// Name is the name of the entry.
	Name string
	// Directory says that it is a directory.
	Directory bool
	// File is the executable in the directory, or nil.
	File *File
}

// File is an executable.
type File struct {
	// Broken says why a symbolic link leads nowhere; empty if the file exists.
	Broken string
	// Outside is the real path of the file, if it is not in the plugin directory.
	Outside string
	// Self is the file. Above are the plugin directory and all directories between it and the file.
	Self  Owned
	Above []Owned
	// Way are the directories and symbolic links on the way to the plugin directory.
	Way []Owned
	// Outer is the number of the file's hard links outside of the plugin directory.
	Outer uint64
}

// Owned is a file or directory with its owner and mode.
type Owned struct {
	Path     string
	Mode     fs.FileMode
	UID, GID uint32
}

// Others returns how users other than root could create or change a file that is started as root,
// or "" if they cannot.
func (o Owned) Others() string {
	switch {
	case o.UID != 0:
		return fmt.Sprintf("belongs to user %d, not to root", o.UID)
	case o.Mode&0o002 != 0 || o.Mode&0o020 != 0 && o.GID != 0:
		return fmt.Sprintf("can be written to by others than root (mode %04o)", o.Mode.Perm())
	}
	return ""
}

// Diverted returns how users other than root could replace a directory or symbolic link on the way
// to a file, or "" if they cannot. In a sticky directory they cannot touch what root owns.
func (o Owned) Diverted() string {
	if o.UID == 0 && o.Mode&(fs.ModeSymlink|fs.ModeSticky) != 0 {
		return ""
	}
	return o.Others()
}

// Kind is the kind of an entry of the plugin directory.
type Kind string

// Kinds of entries.
const (
	// NoDriver: the entry is ignored.
	NoDriver Kind = "no driver"
	// Refused: the driver must not be executed.
	Refused Kind = "refused"
	// Found: the entry is a driver.
	Found Kind = "driver"
)

// Visible says whether a name is considered, in the plugin directory and below it: names that begin
// with a dot are not (F-050).
func Visible(name string) bool {
	return !strings.HasPrefix(name, ".")
}

// ExecutableName returns the name that the executable in a driver's directory must have, also if
// the directory's name is invalid.
func ExecutableName(dir string) string {
	return dir[strings.LastIndexByte(dir, '~')+1:]
}

// ReadEntry decides about an entry. Since the executable is started as root, nobody else may have
// been able to create it. Plain files in the plugin directory are ignored, and so are directories
// without an executable, which installers create first.
func ReadEntry(e Entry) (Kind, Name, volume.Because) {
	if !Visible(e.Name) || !Visible(ExecutableName(e.Name)) || !e.Directory || e.File == nil {
		return NoDriver, Name{}, volume.Because{}
	}
	refuse := func(n Name, why string) (Kind, Name, volume.Because) {
		return Refused, n, volume.Sayf(volume.ReasonFlexDriverRefused, volume.User(),
			"the driver in directory %s is not executed: %s", strconv.Quote(e.Name), why)
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

// unsafe returns why a file must not be executed, or "".
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
