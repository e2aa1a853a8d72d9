package mount8

import (
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/testkit/golden"
)

// TestParse plays command lines, and below each what is understood.
func TestParse(t *testing.T) {
	golden.Steps(t, "testdata/calls.txt", func(_ *testing.T, play func(func(string) string)) {
		play(func(line string) string {
			words := strings.Fields(line)
			call, err := Parse(words[0], "/home/me", words[1:])
			if err != nil {
				return "error: " + err.Error()
			}
			return call.text()
		})
	})
}

// text returns what differs from a plain call.
func (c Call) text() string {
	text := fmt.Sprintf("mount %q/%s at %s with %q", c.Namespace, c.Claim, c.Dir, c.Options)
	if c.Umount {
		text = "umount " + c.Dir
	}
	for word, is := range map[string]bool{
		" fake": c.Fake, " lazy": c.Lazy && !c.Force, " force": c.Force && !c.Lazy, " lazy and force": c.Lazy && c.Force,
	} {
		if is {
			text += word
		}
	}
	if c.Timeout != Timeout {
		text += " within " + c.Timeout.String()
	}
	if c.Node != "" || c.Kubeconfig != "" {
		text += " on " + c.Node + " by " + c.Kubeconfig
	}
	if c.Create {
		text += fmt.Sprintf(" create %s of class %q", &c.Size, c.Class)
	}
	return text
}

// TestNoted reads libmount's file.
func TestNoted(t *testing.T) {
	text := `SRC=/dev/loop0 TARGET=/srv/a ROOT=/ BINDSRC=/srv/a OPTS=helper=volplane
SRC=/dev/loop1 TARGET=/srv/b\040c ROOT=/ OPTS=helper=volplane,x-volplane.kubeconfig=/etc/k,x-volplane.node=one
SRC=/dev/loop2 TARGET=/srv/d ROOT=/ OPTS=uhelper=udisks2
SRC=/dev/loop3 TARGET=/srv/e ROOT=/ OPTS=helper=other
SRC=/dev/loop3 TARGET=/srv/f
damaged
SRC=/dev/loop4 TARGET=/srv/a ROOT=/ OPTS=helper=volplane,x-volplane.node=two`
	for path, want := range map[string]string{
		"/srv/a":   "map[helper:volplane node:two]",
		"/srv/b c": "map[helper:volplane kubeconfig:/etc/k node:one]",
		"/srv/d":   "map[]", "/srv/e": "map[]", "/srv/f": "map[]", "/srv": "map[]",
	} {
		if got := fmt.Sprint(notedIn(text, path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

// TestNotedAnew: a line of an earlier mount does not hide that another control plane has to be recorded for umount(8).
func TestNotedAnew(t *testing.T) {
	old := "TARGET=/srv OPTS=helper=volplane,x-volplane.node=one,x-volplane.kubeconfig=/a\n"
	for options, is := range map[string]bool{
		"helper=volplane,x-volplane.kubeconfig=/a,x-volplane.node=one": true,
		"helper=volplane,x-volplane.kubeconfig=/b,x-volplane.node=one": false,
		"helper=volplane,x-volplane.kubeconfig=/a":                     false,
		"helper=volplane": false,
	} {
		if isNoted(old, "/srv", options) != is || isNoted(old, "/srv/a", options) {
			t.Errorf("%s: %t", options, !is)
		}
		if both := old + "TARGET=/srv OPTS=" + options + "\n"; !isNoted(both, "/srv", options) {
			t.Errorf("%s is not what counts", options)
		}
	}
}

// FuzzParse: no call makes a program that root runs panic, and what is accepted names a claim.
func FuzzParse(f *testing.F) {
	f.Add("data /srv -o ro,volplane.size=1Gi")
	f.Add("-l -- /srv")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, " ")
		c, err := Parse(MountProgram, "/", args)
		if err == nil && (c.Umount || c.Claim == "" || strings.Contains(c.Claim, "/")) {
			t.Errorf("mount %q: %+v", args, c)
		}
		if c, err := Parse(UmountProgram, "/", args); err == nil && !c.Umount {
			t.Errorf("umount %q: %+v", args, c)
		}
	})
}
