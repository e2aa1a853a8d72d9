package driver

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// hostile are drivers that do what a driver should not: branches of mount and,
// if it is not the usual one, of unmount.
func hostile() []struct{ name, mount, unmount string } {
	const no = `echo '{"status":"Failure","message":"no server"}'; exit 1`
	return []struct{ name, mount, unmount string }{
		{"as it should be", mountsOne, ""},
		{"prints nothing, exit 0", `exit 0`, `exit 0`},
		{"prints nothing, exit 1", `exit 1`, `exit 1`},
		{"mounts and prints nothing", `mount -t tmpfs one "$2"`, ""},
		{"prints 100 MiB, then the answer", `mount -t tmpfs one "$2"; yes noise | head -c 104857600; ` + success, ""},
		{"prints 100 MiB and no answer", `yes noise | head -c 104857600`, ""},
		{"prints 100 MiB to stderr", `mount -t tmpfs one "$2"; yes noise | head -c 104857600 >&2; ` + success, ""},
		{"prints bytes", `printf '\177ELF\001\002\377\376{'`, ""},
		{"answer on stderr, text on stdout", `mount -t tmpfs one "$2"; echo mounting; ` + success + ` >&2`, ""},
		{"two answers", `echo '{"status":"Failure"}'; ` + mountsOne, ""},
		{"deep JSON", `i=0; while [ $i -lt 2000 ]; do printf '{"a":'; i=$((i+1)); done; ` + success, ""},
		{"huge JSON", `printf '{"status":"Success","x":"'; head -c 3000000 /dev/zero | tr '\0' a; printf '"}'`, ""},
		{"status of a wrong kind", `echo '{"status":["Success"]}'`, ""},
		{"capabilities null", `mount -t tmpfs one "$2"; echo '{"status":"Success","capabilities":null}'`, ""},
		{
			"other capitals", `mount -t tmpfs one "$2"; echo '{"STATUS":"success"}'`, `umount "$2"; echo '{"Status":"SUCCESS"}'`,
		},
		{"success with exit 1", mountsOne + `; exit 1`, `umount "$2"; ` + success + `; exit 1`},
		{"success with exit 2", mountsOne + `; exit 2`, `umount "$2"; ` + success + `; exit 2`},
		{"success with exit 137", mountsOne + `; exit 137`, ""},
		{"failure with exit 0", `echo '{"status":"Failure","message":"no server"}'`, ""},
		{"kills itself", `mount -t tmpfs one "$2"; kill -9 $$`, `umount "$2"; kill -9 $$`},
		{"hangs", `sleep 1000`, ""},
		{"mounts and hangs", `mount -t tmpfs one "$2"; sleep 1000`, `umount "$2"; sleep 1000`},
		{"hangs and ignores signals", `trap '' TERM INT HUP; sleep 1000; sleep 1000`, `trap '' TERM; sleep 1000`},
		{"answers and hangs", `mount -t tmpfs one "$2"; ` + success + `; sleep 1000`, ""},
		{"mounts and fails", `mount -t tmpfs one "$2"; ` + no, `umount "$2"; ` + no},
		{
			"mounts twice and below and fails",
			`mount -t tmpfs one "$2"; mount -t tmpfs two "$2"; mkdir "$2/a"; mount -t tmpfs three "$2/a"; ` + no, "",
		},
		{"mounts twice", `mount -t tmpfs one "$2"; mount -t tmpfs two "$2"; ` + success, ""},
		{
			"mounts below, then over it, and fails",
			`mkdir "$2/a"; mount -t tmpfs three "$2/a"; mount -t tmpfs one "$2"; ` + no, "",
		},
		{"mounts and is in it", `mount -t tmpfs one "$2"; cd "$2"; sleep 1000 & echo $! >>"$root/daemons"; cd /; ` + no, ""},
		{"mounts nothing", success, ""},
		{"mounts elsewhere", `mkdir "$root/other"; mount -t tmpfs other "$root/other"; ` + success, success},
		{"mounts elsewhere and fails", `mkdir "$root/other"; mount -t tmpfs other "$root/other"; ` + no, no},
		{"mounts beside it and fails", `mkdir "$2-x"; mount -t tmpfs other "$2-x"; ` + no, no},
		{"mounts below only", `mkdir "$2/a"; mount -t tmpfs one "$2/a"; ` + success, ""},
		{"unpacks files", `echo data >"$2/file"; ` + success, `rm "$2/file"; ` + success},
		{"unpacks files and fails", `echo data >"$2/file"; ` + no, ""},
		{"leaves files behind", `echo data >"$2/file"; ` + mountsOne, ""},
		{
			"replaces the directory by a link", `mkdir -p "$root/data"; rmdir "$2"; ln -s "$root/data" "$2"; ` + success,
			success,
		},
		{
			"replaces the directory by a link and fails", `mkdir -p "$root/data"; rmdir "$2"; ln -s "$root/data" "$2"; ` + no,
			"",
		},
		{"replaces the directory by a file", `rmdir "$2"; echo x >"$2"; ` + success, success},
		{"removes the directory", `rm -r "$2"; ` + success, ""},
		{"unmount removes the directory", mountsOne, `umount "$2"; rmdir "$2"; ` + success},
		{"unmount says so and does not", mountsOne, success},
		{"unmount hangs", mountsOne, `umount "$2"; sleep 1000`},
		{"unmount fails", mountsOne, no},
		{"unmount takes one of two", `mount -t tmpfs one "$2"; mount -t tmpfs two "$2"; ` + success, `umount "$2"; ` + no},
		{"not supported", `echo '{"status":"Not supported"}'; exit 1`, `echo '{"status":"Not supported"}'; exit 1`},
		{
			"mounts and does not support it", `mount -t tmpfs one "$2"; echo '{"status":"Not supported"}'; exit 1`,
			`echo '{"status":"Not supported"}'; exit 1`,
		},
		{"tells its arguments", `echo "usage: $1"; printf '%s' "$3" >&2; exit 1`, ""},
		{
			"tells its arguments in the answer",
			`echo "{\"status\":\"Failure\",\"message\":\"$(printf '%s' "$3" | sed 's/"/\\"/g')\"}"; exit 1`, "",
		},
		{
			"mounts under the secret's name",
			`s=$(printf '%s' "$3" | sed 's/.*password":"//; s/".*//' | base64 -d); mount -t tmpfs "$s" "$2"; ` + success, "",
		},
		{"decodes the secret and tells it", `printf '%s' "$3" | sed 's/.*password":"//; s/".*//' | base64 -d; exit 1`, ""},
	}
}

// TestHostileDrivers mounts and unmounts with each, twice each, and wants what is
// mounted to agree with what is said (H1 to H4).
func TestHostileDrivers(t *testing.T) {
	all := make([]string, len(hostile()))
	t.Run("all", func(t *testing.T) {
		for i, h := range hostile() {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				unmount := unmounts
				if h.unmount != "" {
					unmount = "unmount) " + h.unmount + " ;;"
				}
				limit := time.Minute
				if strings.Contains(h.mount+h.unmount, "sleep 1000") {
					limit = 5 * time.Second
				}
				b := newBench(t, ready+"\nmount) "+h.mount+" ;;\n"+unmount, options(limit))
				all[i] = h.name + ":\n" + b.twice(t)
			})
		}
	})
	if _, err := os.Lstat("/x"); err == nil {
		t.Error("a secret was run as a command")
	}
	golden.Equal(t, filepath.Join("testdata", "hostile.txt"), strings.Join(all, ""))
}

// twice mounts and unmounts, twice each, and returns the results without secrets.
func (b *bench) twice(t *testing.T) string {
	t.Helper()
	const secret = "p`touch /x`$(id); \"'\\ &|<x>"
	v := decide.Volume{Name: "pv", Secrets: map[string]string{"password": secret}, Options: map[string]string{"a": "b"}}
	// The mount table itself keeps no secrets.
	mounted := func() string { return strings.ReplaceAll(b.mounted(t), secret, "SECRET") }
	var out strings.Builder
	for range 2 {
		why, err := b.Mount(t.Context(), b.dir(), "", v)
		fmt.Fprintf(&out, "\tmount: %s\n\t\t[%s]\n", told(why, err), mounted())
		if err == nil {
			continue
		}
		if err := b.Clear(t.Context(), b.dir()); err != nil {
			fmt.Fprintf(&out, "\tclear: %v\n", err)
			break
		}
	}
	for range 2 {
		why, err := b.Unmount(t.Context(), b.dir())
		fmt.Fprintf(&out, "\tunmount: %s\n\t\t[%s]\n", told(why, err), mounted())
		if err == nil && !absent(b.dir()) {
			fmt.Fprintf(&out, "\t\tthe directory is there\n")
		}
	}
	fmt.Fprintf(&out, "\tcalls: %s\n", b.ops())
	for _, form := range []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), "touch /x"} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret is told:\n%s", out.String())
		}
	}
	return strings.NewReplacer(b.dir(), "DIR", b.root, "ROOT").Replace(out.String())
}

// told is the result of a call on one line.
func told(why volume.Because, err error) string {
	if err == nil {
		return "Done, " + string(why.Reason) + ": " + why.Message
	}
	var e *CallError
	if !errors.As(err, &e) {
		return "other error: " + err.Error()
	}
	return e.Outcome.String() + ": " + e.Error()
}
