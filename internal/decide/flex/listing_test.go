package flex_test

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/testkit/golden"
)

// driver is a directory of this name with such a file of its name.
func driver(name string, f *flex.File) flex.Entry {
	return flex.Entry{Name: name, Directory: true, File: f}
}

// TestReadEntry: which entries of the plugin directory are drivers, which are
// nothing, and which must not be executed.
func TestReadEntry(t *testing.T) {
	const root = "/plugins"
	above := func(o flex.Owned) []flex.Owned {
		return []flex.Owned{o, {Path: root, Mode: fs.ModeDir | 0o755}}
	}
	dir := flex.Owned{Path: root + "/dir", Mode: fs.ModeDir | 0o755}
	self := flex.Owned{Path: root + "/dir/file", Mode: 0o755}
	safe := func() *flex.File { return &flex.File{Self: self, Above: above(dir)} }
	of := func(change func(o *flex.Owned)) *flex.File {
		f := safe()
		change(&f.Self)
		return f
	}
	in := func(change func(o *flex.Owned)) *flex.File {
		d := dir
		change(&d)
		return &flex.File{Self: self, Above: above(d)}
	}
	by := func(way flex.Owned) *flex.File {
		f := safe()
		f.Way = []flex.Owned{way, {Path: "/", Mode: fs.ModeDir | 0o755}}
		return f
	}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		entry  flex.Entry
	}{
		{"a directory with the executable of its name", driver("example.com~lofs", safe())},
		{"the vendor may be missing", driver("lofs", safe())},
		{"a plain file is nothing, whatever it is called", flex.Entry{Name: "NOTES", File: safe()}},
		{"a directory is made before its executable comes", flex.Entry{Name: "example.com~lofs", Directory: true}},
		{"what begins with a dot is not there", driver(".stage~x", safe())},
		{"a directory of the file system's is nothing", flex.Entry{Name: "lost+found", Directory: true}},
		{"two tildes", driver("a~b~c", safe())},
		{"upper case in the vendor", driver("Example.com~lofs", safe())},
		{"dots that lead upwards", driver("..~x", safe())},
		{"dots as the driver", driver("example.com~..", safe())},
		{"dots in the vendor", driver("a..b~lofs", safe())},
		{"a blank", driver("example.com~lo fs", safe())},
		{"a new line", driver("example.com~lo\nfs", safe())},
		{"no name", driver("example.com~", safe())},
		{"no vendor before the tilde", driver("~lofs", safe())},
		{"a name too long", driver(strings.Repeat("a", 64), safe())},
		{"a link that leads nowhere", driver("lofs",
			&flex.File{Broken: "a symbolic link leads nowhere: no such file or directory"})},
		{"a link out of the tree", driver("lofs", &flex.File{Outside: "/tmp/x"})},
		{"a directory for a file", driver("lofs", of(func(o *flex.Owned) { o.Mode |= fs.ModeDir }))},
		{"a pipe", driver("lofs", of(func(o *flex.Owned) { o.Mode |= fs.ModeNamedPipe }))},
		{"a file of another user", driver("lofs", of(func(o *flex.Owned) { o.UID = 1000 }))},
		{"a file that all may write", driver("lofs", of(func(o *flex.Owned) { o.Mode = 0o757 }))},
		{"a file that a group may write", driver("lofs", of(func(o *flex.Owned) { o.Mode, o.GID = 0o775, 50 }))},
		{"root's group may", driver("lofs", of(func(o *flex.Owned) { o.Mode = 0o775 }))},
		{"a setuid file", driver("lofs", of(func(o *flex.Owned) { o.Mode |= fs.ModeSetuid }))},
		{"a setgid file", driver("lofs", of(func(o *flex.Owned) { o.Mode |= fs.ModeSetgid }))},
		{"a file that nobody may execute", driver("lofs", of(func(o *flex.Owned) { o.Mode = 0o644 }))},
		{"a directory of another user", driver("lofs", in(func(o *flex.Owned) { o.UID = 1000 }))},
		{"a directory that all may write, though sticky", driver("lofs",
			in(func(o *flex.Owned) { o.Mode |= fs.ModeSticky | 0o777 }))},
		{"a way that is root's alone", driver("lofs", by(flex.Owned{Path: "/way", Mode: fs.ModeDir | 0o755}))},
		{"a way that all may write", driver("lofs", by(flex.Owned{Path: "/way", Mode: fs.ModeDir | 0o777}))},
		{"a way that all may write, but sticky", driver("lofs",
			by(flex.Owned{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777}))},
		{"a sticky way of another user", driver("lofs",
			by(flex.Owned{Path: "/way", Mode: fs.ModeDir | fs.ModeSticky | 0o755, UID: 1000}))},
		{"a link on the way", driver("lofs", by(flex.Owned{Path: "/link", Mode: fs.ModeSymlink | 0o777}))},
		{"another user's link on the way", driver("lofs",
			by(flex.Owned{Path: "/link", Mode: fs.ModeSymlink | 0o777, UID: 1000}))},
		{"a hard link out of the tree", driver("lofs", &flex.File{Self: self, Above: above(dir), Outer: 1})},
	} {
		kind, name, because := flex.ReadEntry(c.entry)
		fmt.Fprintf(&out, "# %s\n%q\n----\n%s %s\n", c.argues, c.entry.Name, kind, name)
		if because.Reason != "" {
			fmt.Fprintf(&out, "%s: %s -> %s\n", because.Reason, because.Message, because.Next)
		}
		out.WriteByte('\n')
	}
	golden.Equal(t, "testdata/listing.txt", out.String())
}
