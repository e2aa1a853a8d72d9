package kubelets

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/test/internal/plane"
)

// moves migrates a volume of Kubernetes' plugin to the bridge, and back. Each time the next Pod finds the
// data of the last one.
func (j *flexJudge) moves() {
	j.t.Helper()
	g := flexPodCase{name: "moved", driver: "lofs", fsType: "ext4"}
	name := g.on(theirs)
	j.create(g.volumeOn(theirs))
	j.visit(g, "example.com~lofs", "", "first", func() {
		if said, err := j.migrate("run", name); err == nil || !strings.Contains(said, name) ||
			!strings.Contains(said, "pod") {
			j.t.Errorf("a volume that a Pod uses was moved: %v: %s", err, said)
		}
	})
	j.migrated("run", name)
	v, err := j.Client.CoreV1().PersistentVolumes().Get(j.ctx, name, metav1.GetOptions{})
	if err != nil || v.Spec.CSI == nil || v.Spec.CSI.Driver != "lofs.example.com" || v.Spec.CSI.VolumeHandle != name {
		j.t.Errorf("the volume is %+v: %v", v, err)
	}
	j.visit(g, "kubernetes.io~csi", "first", "second", func() {})
	j.migrated("undo", name)
	j.visit(g, "example.com~lofs", "second", "third", func() {})
}

// migrate runs a command and returns its output.
func (j *flexJudge) migrate(verb, volume string) (string, error) {
	said, err := exec.CommandContext(j.ctx, plane.Bin("volplane"), "flex", "migrate", verb, volume,
		"--kubeconfig="+j.AdminKubeconfig()).CombinedOutput()
	return string(said), err
}

// migrated requires that the command succeeds.
func (j *flexJudge) migrated(verb, volume string) {
	j.t.Helper()
	if said, err := j.migrate(verb, volume); err != nil {
		j.t.Fatalf("%s: %v: %s", verb, err, said)
	}
}

// visit makes a Pod find one word and write another in a guest's volume, which a plugin mounts.
func (j *flexJudge) visit(g flexPodCase, plugin, finds, writes string, meanwhile func()) {
	j.t.Helper()
	j.come(theirs, g)
	j.runs(g.on(theirs))
	path := j.path(g.on(theirs))
	if !strings.Contains(path, "/volumes/"+plugin+"/") {
		j.t.Errorf("%s did not mount %s", plugin, path)
	}
	j.reads(path, finds)
	j.must(os.WriteFile(filepath.Join(path, "file"), []byte(writes), 0o600))
	meanwhile()
	j.delete(g.on(theirs))
	j.eventually(j.left)
}

// reads requires that the file of a volume contains a word.
func (j *flexJudge) reads(path, word string) {
	j.t.Helper()
	got, err := os.ReadFile(filepath.Join(path, "file"))
	if string(got) != word || err != nil && (word != "" || !os.IsNotExist(err)) {
		j.t.Errorf("%s has %q, not %q: %v", path, got, word, err)
	}
}

// killed kills the bridge while Pods use its volumes. The Pods and the processes of their driver continue.
// Pods that are deleted while no bridge runs are gone after it has started again.
func (j *flexJudge) killed() {
	j.t.Helper()
	lasting := flexPodCase{name: "lasting", driver: "lofs", fsType: "ext4"}
	j.create(lasting.volumeOn(ours))
	j.come(ours, lasting)
	pod := flexPodCase{name: "served", driver: "scratch", inline: true}.podOn(ours)
	pod.Spec.Volumes[0].CSI.VolumeAttributes["daemon"] = "yes"
	_, err := j.Client.CoreV1().Pods("default").Create(j.ctx, pod, metav1.CreateOptions{})
	j.must(err)
	pods := []string{lasting.on(ours), pod.Name}
	paths := map[string]string{}
	for _, name := range pods {
		j.runs(name)
		paths[name] = j.path(name)
		j.must(os.WriteFile(filepath.Join(paths[name], "file"), []byte(name), 0o600))
	}
	text, err := os.ReadFile(filepath.Join(j.pool(), "daemon-scratch"))
	j.must(err)
	daemon := strings.TrimSpace(string(text))
	j.bridge.Kill()
	for _, name := range pods {
		j.reads(paths[name], name)
	}
	if !lives(daemon) {
		j.t.Error("the driver's daemon ended with the bridge")
	}
	first := pods[0]
	j.delete(first)
	j.serve()
	j.gone(first)
	j.reads(paths[pods[1]], pods[1])
	j.delete(pods[1])
	j.eventually(j.left)
	if lives(daemon) {
		j.t.Error("the driver's daemon has not ended with its volume")
	}
	neverTwice(j.t, j.calls(ours))
}

// lives says whether a process is running, and not a zombie.
func lives(pid string) bool {
	said, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	return err == nil && len(said) > 0
}

// gone waits until a Pod is gone.
func (j *flexJudge) gone(pod string) {
	j.t.Helper()
	(&kubeletCluster{t: j.t, ctx: j.ctx, client: j.Client, root: j.root}).gone(pod)
}
