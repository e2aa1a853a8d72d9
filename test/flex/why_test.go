package flex

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"volplane.dev/volplane/test/internal/planetest"
)

// says runs why until the answer, on one line, has all words.
func (f *flexPlane) says(object string, words ...string) {
	f.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(planetest.Patience); ; <-tick.C {
		out, _ := f.run("why", object)
		out = strings.Join(strings.Fields(out), " ")
		all := true
		for _, w := range words {
			all = all && strings.Contains(out, w)
		}
		if all {
			return
		}
		if time.Now().After(end) {
			f.Fatalf("volplane why %s says\n%s\nwant %q", object, out, words)
		}
	}
}

// script replaces a driver, in one step, by a shell script with these cases.
func (f *flexPlane) script(name, cases string) {
	f.Helper()
	dir := filepath.Join(f.Dir, "volumeplugins", ofOurs+"~"+name)
	text := "#!/bin/sh\ncase $1 in " + cases + `*) echo '{"status":"Not supported"}'; exit 1;; esac` + "\n"
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, ".new"), []byte(text), 0o755)
	}
	if err == nil {
		err = os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, name))
	}
	if err != nil {
		f.Fatal(err)
	}
}

// TestWhyFlex: the answer about a Pod with a FlexVolume has the name and the path of the driver, what is
// wrong there, and who acts next.
func TestWhyFlex(t *testing.T) {
	const (
		scratch = "FlexVolume driver " + ofOurs + "/scratch"
		lofs    = "FlexVolume driver " + ofOurs + "/lofs"
		well    = `init) echo '{"status":"Success","capabilities":{"attach":false}}';; `
		umount  = `unmount) umount "$2"; echo '{"status":"Success"}';; `
	)
	f := newFlexPlane(t)
	f.applied("scratch.yaml")
	f.applied("lofs.yaml")
	dir := filepath.Join(f.Dir, "volumeplugins")
	f.says("pod/scratch", scratch+" is not installed on node", "drivers are in "+dir,
		"`volplane flex install "+ofOurs+"/scratch FILE`", "Next: administrator of node")
	f.says("pvc/lofs", lofs+" is not installed on node", "FailedScheduling", "Next: administrator of node")

	f.script("scratch", `init) echo '{"status":"Failure","message":"jq is missing"}'; exit 1;; `)
	f.says("pod/scratch", scratch+" cannot be used on node", "it does not initialise", "jq is missing",
		"Next: administrator of node")
	f.script("scratch", well+`mount) sleep 600;; `+umount)
	f.says("pod/scratch", "was called to publish volume data", "has not answered yet", "Next: scratch."+ofOurs)
	f.want([]string{"delete", "pod", "scratch", "--wait=false"})
	f.says("pod/scratch", "the Pod is being deleted", "has not answered yet")

	f.script("lofs",
		`init) echo '{"status":"Success"}';; attach) echo '{"status":"Failure","message":"no such LUN"}'; exit 1;; `)
	f.says("pod/lofs", "volume lofs-db is not attached to node", "no such LUN", "Next: "+lofs)
	if err := os.RemoveAll(filepath.Join(dir, ofOurs+"~lofs")); err != nil {
		t.Fatal(err)
	}
	f.want([]string{"delete", "pod", "lofs"})
}
