package mount

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFindCopies: a mount that keeps a filesystem in use after its unmount here is a copy, wherever it is, and nothing
// else is.
func TestFindCopies(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		// script runs beside the mount, which is $1 in a shared directory, reports that it is ready, and ends with its input.
		script string
		copy   bool
	}{
		"nobody":                   {wait, false},
		"a container":              {elsewhere("private", `mount --bind "$1" /mnt; umount "$1"; `+wait), true},
		"the whole host as it was": {elsewhere("private", wait), false},
		"a container that looks at the host, and all that becomes of it": {
			elsewhere("slave", `mount --rbind "$(dirname "$1")" /mnt; umount -R "$(dirname "$1")"; `+wait), false,
		},
		"a container that has looked at the host": {
			elsewhere("private", `mount --rbind "$(dirname "$1")" /mnt; umount -R "$(dirname "$1")"; `+wait), true,
		},
		"a part, in a container":            {elsewhere("private", `mount --bind "$1/sub" /mnt; umount "$1"; `+wait), true},
		"a container that has unmounted it": {elsewhere("private", `umount "$1"; `+wait), false},
		"another path of this host": {
			`mkdir /tmp/copy.$$; mount --bind "$1" /tmp/copy.$$; ` + wait + `; umount /tmp/copy.$$; rmdir /tmp/copy.$$`, true,
		},
		"a path of ours on this host": {`mount --bind "$1" "$1/sub"; ` + wait + `; umount "$1/sub"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			target := shared(t, device)
			point, _, err := At(target)
			if err != nil {
				t.Fatal(err)
			}
			end := holder(t, c.script, target)
			found, err := FindCopies(t.Context(), Inside(target))
			if err != nil || found.Of(point) != c.copy {
				t.Errorf("a copy was found: %v, %v", found.Of(point), err)
			}
			end()
			if found, err = FindCopies(t.Context(), Inside(target)); err != nil || found.Of(point) {
				t.Errorf("a copy was found after the end: %v, %v", found.Of(point), err)
			}
		})
	}
}

const wait = "echo ready; read x"

// elsewhere returns a script that runs another one in a mount namespace of its own.
func elsewhere(propagation, script string) string {
	return "exec unshare --mount --propagation " + propagation + " sh -c '" + script + `' sh "$1"`
}

// shared mounts the device in a directory whose mounts other namespaces may receive.
func shared(t *testing.T, device string) (target string) {
	t.Helper()
	dir := t.TempDir()
	target = filepath.Join(dir, "volume")
	for _, args := range [][]string{
		{"mount", "--bind", dir, dir},
		{"mount", "--make-private", dir},
		{"mount", "--make-shared", dir},
		{"mkdir", target},
		{"mount", device, target},
		{"mkdir", "-p", filepath.Join(target, "sub")},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", args, out)
		}
	}
	t.Cleanup(func() {
		if err := errors.Join(Unmount(target), Unmount(dir)); err != nil {
			t.Error(err)
		}
	})
	return target
}

// TestFindCopiesPartialView: a mount that no process in its namespace can see, because all have another root directory,
// is found, too.
func TestFindCopiesPartialView(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	target := shared(t, device)
	point, _, err := At(target)
	if err != nil {
		t.Fatal(err)
	}
	end := holder(t, elsewhere("private", `mount --bind "$1" /mnt; chroot /usr /bin/sh -c "echo ready; read x"; exit`), target)
	if found, err := FindCopies(t.Context(), Inside(target)); err != nil || !found.Of(point) {
		t.Errorf("beside a process that sees all: %v, %v", found.Of(point), err)
	}
	end()
	script := `mount --bind "$1" /mnt; exec chroot /usr /bin/sh -c "echo ready; read x"`
	end = holder(t, elsewhere("private", script), target)
	if found, err := FindCopies(t.Context(), Inside(target)); err != nil || !found.Of(point) {
		t.Errorf("without a process that sees everything: %v, %v", found.Of(point), err)
	}
	end()
}

// TestFindCopiesOfThread: docker copies files in a thread that alone sees a mount of the volume.
func TestFindCopiesOfThread(t *testing.T) {
	_, device := disk(t, 16)
	if err := Format(t.Context(), device, "ext4"); err != nil {
		t.Fatal(err)
	}
	target, elsewhere := shared(t, device), t.TempDir()
	point, _, err := At(target)
	if err != nil {
		t.Fatal(err)
	}
	ready, end, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		OnThreadOfItsOwn(func() {
			err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
			err = errors.Join(err, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
			ready <- errors.Join(err, unix.Mount(target, elsewhere, "", unix.MS_BIND, ""))
			<-end
		})
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	if found, err := FindCopies(t.Context(), Inside(target)); err != nil || !found.Of(point) {
		t.Errorf("the copy of a thread was found: %v, %v", found.Of(point), err)
	}
	close(end)
	<-ended
}

// TestThreadOfItsOwn: a thread that leaves the mount namespace is never the first one, whose mounts /proc/self shows.
func TestThreadOfItsOwn(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		OnThreadOfItsOwn(func() { err = unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS) })
		if err != nil {
			t.Fatal(err)
		}
		if now, err := os.Readlink("/proc/self/ns/mnt"); err != nil || now != before {
			t.Fatalf("the process is in %s, %v; it was in %s", now, err, before)
		}
	}
}

// holder runs a script that says when it is ready, until the returned function is called.
func holder(t *testing.T, script, target string) (end func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script, "sh", target)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("the script says %q, %v", line, err)
	}
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}
