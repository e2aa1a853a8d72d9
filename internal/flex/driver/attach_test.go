package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// everything is a driver that supports all operations.
const everything = attaches + `
getvolumename) echo '{"status":"Success","volumeName":"pool/7"}' ;;
attach) echo '{"status":"Success","device":"/dev/x"}' ;;
isattached) echo '{"status":"Success","attached":true}' ;;
waitforattach) echo '{"status":"Success","device":"/dev/y"}' ;;
mountdevice|mount) ` + mountsOne + ` ;;
expandvolume) echo '{"status":"Success","volumeNewSize":2048}' ;;
expandfs|detach) ` + success + ` ;;
unmountdevice|` + unmounts

func pv() decide.Volume {
	return decide.Volume{
		Name: "pv-1", FSType: "ext4", Options: map[string]string{"server": "192.168.0.1:1234", "path": `/a b/"<c>"`},
		Secrets: map[string]string{"password": "$(x)"}, FSGroup: ptr.To(int64(2000)),
		Pod: decide.PodInfo{Name: "web-0", Namespace: "shop", UID: "b2f", ServiceAccount: "default"},
	}
}

// life makes every call in the order of a volume's life and returns the results.
func (b *bench) life(ctx context.Context, device string) string {
	var out strings.Builder
	deviceDir := filepath.Join(b.root, "plugins", "kubernetes.io", "flexvolume", "example.com", "t", "mounts", "pv-1")
	tell := func(op string, result any, err error) { fmt.Fprintf(&out, "%s: %v, %v\n", op, result, err) }
	name, err := b.VolumeName(ctx, pv())
	tell("getvolumename", name, err)
	attached, err := b.Attach(ctx, pv(), "node-1")
	tell("attach", attached, err)
	is, known, err := b.IsAttached(ctx, pv(), "node-1")
	tell("isattached", fmt.Sprint(is, ", known ", known), err)
	if attached == "" {
		attached = device
	}
	waited, err := b.WaitForAttach(ctx, attached, pv())
	tell("waitforattach", waited, err)
	why, err := b.MountDevice(ctx, deviceDir, waited, pv())
	tell("mountdevice", why.Message, err)
	why, err = b.Mount(ctx, b.dir(), deviceDir, pv())
	tell("mount", why.Message, err)
	size, err := b.ExpandVolume(ctx, pv(), deviceDir, 1024, 512)
	tell("expandvolume", size, err)
	tell("expandfs", "", b.ExpandFS(ctx, pv(), waited, b.dir(), 1024, 512))
	why, err = b.Unmount(ctx, b.dir())
	tell("unmount", why.Message, err)
	why, err = b.UnmountDevice(ctx, deviceDir)
	tell("unmountdevice", why.Message, err)
	tell("detach", "", b.Detach(ctx, name, "node-1"))
	return strings.ReplaceAll(out.String(), b.root, "ROOT")
}

// TestCalls: the arguments of each operation, byte for byte (flex.md 1.1), and
// what comes of a driver that supports all.
func TestCalls(t *testing.T) {
	b := newBench(t, everything, options(10*time.Second))
	result := b.life(t.Context(), "")
	calls, err := os.ReadFile(filepath.Join(b.root, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	golden.Equal(t, filepath.Join("testdata", "calls.txt"), strings.ReplaceAll(string(calls), b.root, "ROOT")+"\n"+result)
	if left := b.mounted(t); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestNothingSupported: what the host does for a driver that has only init (F-016), and
// that it calls again where a single refusal must not count forever (H11).
func TestNothingSupported(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct{ name, branches string }{
		{"says so", attaches},
		{"says nothing", attaches + "\n*) exit 1 ;;"},
	} {
		b := newBench(t, c.branches, options(10*time.Second))
		for range 2 {
			fmt.Fprintf(&out, "%s:\n%s", c.name, b.life(t.Context(), ""))
		}
		fmt.Fprintf(&out, "calls: %s\n\n", b.ops())
		if left := b.mounted(t); left != "" {
			t.Errorf("left: %s", left)
		}
	}
	golden.Equal(t, filepath.Join("testdata", "not-supported.txt"), out.String())
}

// TestNames of volumes: whose name detach gets (F-018, F-019), and names that are
// none.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		name, branch, setting, want string
		err                         error
	}{
		{"driver's", `getvolumename) echo '{"status":"Success","volumeName":"a/b"}' ;;`, "", "a~b", nil},
		{
			"Kubernetes' way", `getvolumename) echo '{"status":"Success","volumeName":"a/b"}' ;;`, decide.NameOfVolume, "pv-1",
			nil,
		},
		{"not supported", "", "", "pv-1", nil},
		{"empty", `getvolumename) echo '{"status":"Success"}' ;;`, "", "", decide.ErrVolumeName},
		{"upwards", `getvolumename) echo '{"status":"Success","volumeName":".."}' ;;`, "", "", decide.ErrVolumeName},
		{"of a wrong kind", `getvolumename) echo '{"status":"Success","volumeName":7}' ;;`, "", "", decide.ErrMalformed},
	} {
		o := options(10 * time.Second)
		o.Settings.VolumeName = c.setting
		b := newBench(t, attaches+"\n"+c.branch, o)
		got, err := b.VolumeName(t.Context(), pv())
		if got != c.want && c.err == nil || !errors.Is(err, c.err) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
	b := newBench(t, everything, options(10*time.Second))
	name, err := b.VolumeName(t.Context(), pv())
	if err != nil || b.o.Calls.nameOf("example.com/t", "pv-1") != name {
		t.Errorf("%q is not known, %v", name, err)
	}
	if err := b.Detach(t.Context(), name, "node-1"); err != nil || b.o.Calls.nameOf("example.com/t", "pv-1") == name {
		t.Errorf("%q is known after detach, %v", name, err)
	}
	for _, name := range []string{"", "..", "a/b", "a\x00"} {
		if err := b.Detach(t.Context(), name, "node-1"); !errors.Is(err, decide.ErrVolumeName) {
			t.Errorf("detach of %q: %v", name, err)
		}
	}
	if ops := b.ops(); ops != "getvolumename detach" {
		t.Errorf("called: %s", ops)
	}
}

// TestFailuresTell: what a failed call reports about its effects.
func TestFailuresTell(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, branch string
		want         volume.Outcome
		message      string
	}{
		{"failure", `echo '{"status":"Failure","message":"no such volume"}'; exit 1`, volume.Failed, "no such volume"},
		{"crash", `echo oops >&2; exit 3`, volume.Unknown, "oops"},
		{"nothing, exit 0", `exit 0`, volume.Unknown, "no answer"},
		{"contradiction", success + `; exit 1`, volume.Unknown, "contradicts"},
		{"too long", `sleep 1000`, volume.Unknown, "in time"},
		{"killed", `kill -9 $$`, volume.Unknown, "signal"},
	} {
		limit := time.Minute
		if c.message == "in time" {
			limit = 3 * time.Second
		}
		b := newBench(t, attaches+"\nattach) "+c.branch+" ;;", options(limit))
		_, err := b.Attach(t.Context(), pv(), "node-1")
		var e *CallError
		if !errors.As(err, &e) || e.Outcome != c.want || !strings.Contains(e.Message, c.message) || e.Op != decide.OpAttach {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestArgumentTooLong is refused before anything is started, and one that fits
// arrives whole (F-004).
func TestArgumentTooLong(t *testing.T) {
	b := newBench(t, ready+`
mount) printf '%s' "$3" | wc -c >"$root/size"; printf '%s' "$3" | sed 's/.*secret.k":"//; s/".*//' | base64 -d | tr -d s | wc -c >"$root/other"; `+mountsOne+` ;;
`+unmounts, options(30*time.Second))
	v := decide.Volume{Name: "pv", Secrets: map[string]string{"k": strings.Repeat("s", 100_000)}}
	_, err := b.Mount(t.Context(), b.dir(), "", v)
	var e *CallError
	if !errors.As(err, &e) || e.Outcome != volume.Failed || !errors.Is(err, decide.ErrTooLong) ||
		strings.Contains(err.Error(), "ssss") {
		t.Errorf("%.300v", err)
	}
	if b.ops() != "" {
		t.Error("it was started")
	}
	v.Secrets["k"] = v.Secrets["k"][:97_000]
	if _, err := b.Mount(t.Context(), b.dir(), "", v); err != nil {
		t.Fatalf("%.300v", err)
	}
	if b.lines("size")[0] < "129" || b.lines("other")[0] != "0" {
		t.Errorf("arrived: %v bytes, %v of another kind", b.lines("size"), b.lines("other"))
	}
	v.Options = map[string]string{"kubernetes.io/readwrite": "rw"}
	if _, err := b.Mount(t.Context(), b.dir(), "", v); !errors.Is(err, decide.ErrOptionKey) {
		t.Errorf("an option of the host's: %v", err)
	}
}

// TestAskAgain: a caller that disconnects does not end the call, and a repeated call does
// not start it again.
func TestAskAgain(t *testing.T) {
	b := newBench(t, attaches+`
getvolumename) echo '{"status":"Success","volumeName":"pool/7"}' ;;
attach) touch "$root/begun"; while ! [ -e "$root/go" ]; do sleep 0.01; done; echo '{"status":"Success","device":"/dev/x"}' ;;
detach) `+success+` ;;
`, options(30*time.Second))
	name, err := b.VolumeName(t.Context(), pv())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Attach(ctx, pv(), "node-1")
		done <- err
	}()
	eventually(t, "attach has begun", func() bool { _, err := os.Stat(filepath.Join(b.root, "begun")); return err == nil })
	cancel()
	err = <-done
	var e *CallError
	if !errors.As(err, &e) || e.Outcome != volume.Unknown || !errors.Is(err, context.Canceled) {
		t.Errorf("the asker went away: %v", err)
	}
	hasty, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.Detach(hasty, name, "node-1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("detach beside attach: %v", err)
	}
	go func() {
		_, err := b.Attach(t.Context(), pv(), "node-1")
		done <- err
	}()
	if err := os.WriteFile(filepath.Join(b.root, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := b.ops(); got != "getvolumename attach" {
		t.Errorf("calls: %s", got)
	}
	if err := b.Detach(t.Context(), name, "node-1"); err != nil {
		t.Error(err)
	}
}
