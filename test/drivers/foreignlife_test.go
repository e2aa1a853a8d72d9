package drivers

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// playLife is the command `life DRIVER` of scripts: everything that happens to a volume of the driver, which the script
// has added. It ends with the driver's removal. Objects of the volume are in the script's files: a claim named data in
// claim.yaml, which may include its PersistentVolume, or a Pod's volume without a claim in volume.yaml. Without either,
// the claim has the class `foreign`.
func playLife(ts *testscript.TestScript, neg bool, args []string) {
	s := ts.Value((*foreignStage)(nil)).(*foreignStage)
	l := &foreignLife{foreignStage: s, ts: ts}
	flags := flag.NewFlagSet("life", flag.ContinueOnError)
	flags.StringVar(&l.reads, "reads", "", "the volume has this file already, and Pods do not write")
	flags.StringVar(&l.holds, "holds", "", "what the file begins with that Pods read")
	flags.BoolVar(&l.late, "late", false, "the driver writes behind")
	flags.StringVar(&l.server, "server", "", "the program that serves the mounts, and is killed")
	flags.StringVar(&l.refuses, "refuses", "", "why the driver makes no volume on this host: a regular expression")
	flags.BoolVar(&l.dies, "mount-dies", false, "the driver serves the mount itself, so both end together")
	err := flags.Parse(args)
	if err != nil || neg || flags.NArg() != 1 {
		ts.Fatalf("usage: life [flags] DRIVER: %v", err)
	}
	s.row.driver = flags.Arg(0)
	ctx, cancel := context.WithTimeout(context.Background(), foreignPatience)
	defer cancel()
	l.ctx = ctx
	for _, step := range l.steps() {
		s.row.steps = append(s.row.steps, step.name)
		if err := step.do(); err != nil {
			s.row.result = "failed at " + step.name
			ts.Fatalf("%s: %s: %v", s.row.driver, step.name, err)
		}
		ts.Logf("%s: %s", s.row.driver, step.name)
	}
	if s.row.result = "works"; l.refuses != "" {
		s.row.result = "registers"
	}
}

// foreignLife is the life of a volume of one driver.
type foreignLife struct {
	*foreignStage
	ts                            *testscript.TestScript
	ctx                           context.Context
	reads, holds, server, refuses string
	dies, late                    bool
	inline                        *corev1.VolumeSource
	// data is the content of the file; file is its path in the mount of the running Pod, if there is one.
	data []byte
	file string
}

type foreignStep struct {
	name string
	do   func() error
}

// steps are in the order in which users do them. An expansion is one of them if the class allows it.
func (l *foreignLife) steps() []foreignStep {
	if l.refuses != "" {
		return l.registration()
	}
	steps := []foreignStep{
		{"added", l.added},
		{"mounted", func() error { return errors.Join(l.createObjects(), l.mount("one")) }},
		{"data", l.write},
		{"second Pod", l.secondPod},
		{"mounted again", func() error { return errors.Join(l.unmount("one"), l.mount("two"), l.read()) }},
	}
	if l.grows() {
		steps = append(steps, foreignStep{"expanded", l.grow})
	}
	if l.server != "" {
		steps = append(steps, foreignStep{"server killed", l.killServer})
	}
	return append(steps,
		foreignStep{"driver killed", l.killDriver},
		foreignStep{"volplaned killed", l.killPlane},
		foreignStep{"remounted", func() error { return errors.Join(l.unmount("two"), l.mount("three"), l.read()) }},
		foreignStep{"deleted", func() error { return errors.Join(l.unmount("three"), l.deleteObjects()) }},
		foreignStep{"removed", l.remove},
		foreignStep{"nothing left", func() error { return l.eventually(l.nothingLeft) }},
	)
}

func (l *foreignLife) added() error {
	return l.eventually(func() error {
		processes, err := l.processes(l.row.driver)
		for _, p := range processes {
			l.row.version = p.Version
			if p.State != "alive" {
				err = errors.Join(err, fmt.Errorf("process %s is %s", p.Name, p.State))
			}
		}
		return err
	})
}

func (l *foreignLife) createObjects() error {
	if text, err := os.ReadFile(l.ts.MkAbs("volume.yaml")); err == nil {
		l.inline = &corev1.VolumeSource{}
		return yaml.UnmarshalStrict(text, l.inline)
	}
	path := l.ts.MkAbs("claim.yaml")
	if _, err := os.Stat(path); err == nil {
		return l.run("kubectl", "apply", "-f", path)
	}
	claim := plane.Claim("data", "320Mi")
	class := "foreign"
	claim.Spec.StorageClassName = &class
	_, err := l.client.CoreV1().PersistentVolumeClaims("default").Create(l.ctx, claim, metav1.CreateOptions{})
	return err
}

// mount creates a Pod and waits until its volume is mounted.
func (l *foreignLife) mount(name string) error {
	if err := l.createPod(name); err != nil {
		return err
	}
	pods := l.client.CoreV1().Pods("default")
	err := l.eventually(func() error {
		got, err := pods.Get(l.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ok, message := plane.Mounted(got)
		if !ok {
			return fmt.Errorf("pod %s is not mounted: %s", name, message)
		}
		l.file = filepath.Join(cluster.MountPaths(got)["data"], cmp.Or(l.reads, "life-of-volplane"))
		return nil
	})
	return errors.Join(err, l.isMounted())
}

func (l *foreignLife) createPod(name string) error {
	pod := plane.Pod(name, "data", "")
	if l.inline != nil {
		pod.Spec.Volumes[0].VolumeSource = *l.inline
	}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{
		Name: "data", MountPath: "/data", ReadOnly: l.reads != "",
	}}
	_, err := l.client.CoreV1().Pods("default").Create(l.ctx, pod, metav1.CreateOptions{})
	return err
}

// isMounted requires a mount at the path of the Pod's volume.
func (l *foreignLife) isMounted() error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err == nil && !bytes.Contains(table, []byte(" "+filepath.Dir(l.file)+" ")) {
		err = fmt.Errorf("nothing is mounted at %s", filepath.Dir(l.file))
	}
	return err
}

// write writes the file, unless the driver has: then it uses that file.
func (l *foreignLife) write() (err error) {
	if l.reads != "" {
		l.data, err = os.ReadFile(l.file)
		if err == nil && !bytes.HasPrefix(l.data, []byte(l.holds)) {
			err = fmt.Errorf("%s has %q, not %q", l.file, l.data, l.holds)
		}
		return err
	}
	l.data = make([]byte, 1<<20)
	if _, err := rand.Read(l.data); err != nil {
		return err
	}
	f, err := os.Create(l.file)
	if err != nil {
		return err
	}
	_, err = f.Write(l.data)
	return errors.Join(err, f.Sync(), f.Close(), l.read())
}

// read compares the file with what was written.
func (l *foreignLife) read() error {
	if l.file == "" {
		return nil
	}
	once := func() error {
		data, err := os.ReadFile(l.file)
		if err == nil && !bytes.Equal(data, l.data) {
			err = fmt.Errorf("%s has other data: %d bytes instead of %d", l.file, len(data), len(l.data))
		}
		return err
	}
	if l.late {
		return l.eventually(once)
	}
	return once()
}

// secondPod uses the same volume on the same node at the same time.
func (l *foreignLife) secondPod() error {
	first := l.file
	err := errors.Join(l.mount("beside"), l.read(), l.unmount("beside"))
	l.file = first
	return errors.Join(err, l.read())
}

func (l *foreignLife) unmount(pod string) error {
	return l.gone(func() error {
		return l.client.CoreV1().Pods("default").Delete(l.ctx, pod, metav1.DeleteOptions{})
	})
}

func (l *foreignLife) gone(remove func() error) error {
	return l.eventually(func() error {
		err := remove()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is still there"), err)
	})
}

func (l *foreignLife) grows() bool {
	class, err := l.client.StorageV1().StorageClasses().Get(l.ctx, "foreign", metav1.GetOptions{})
	return err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}

func (l *foreignLife) grow() error {
	claims := l.client.CoreV1().PersistentVolumeClaims("default")
	patch := []byte(`{"spec":{"resources":{"requests":{"storage":"640Mi"}}}}`)
	if _, err := claims.Patch(l.ctx, "data", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	err := l.eventually(func() error {
		claim, err := claims.Get(l.ctx, "data", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if size := claim.Status.Capacity[corev1.ResourceStorage]; size.Value() < 640<<20 {
			return fmt.Errorf("its size is %s: %+v", size.String(), claim.Status.Conditions)
		}
		return nil
	})
	return errors.Join(err, l.read())
}

// killDriver kills each of the driver's processes and waits until it runs again. Until then the data are
// available; if the driver itself served them, they reappear.
func (l *foreignLife) killDriver() error {
	before, err := l.processes(l.row.driver)
	if err != nil {
		return err
	}
	for _, p := range before {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
			return err
		}
	}
	if !l.dies {
		if err := l.read(); err != nil {
			return fmt.Errorf("while the driver is dead: %w", err)
		}
	}
	err = l.eventually(func() error {
		after, err := l.processes(l.row.driver)
		for i, p := range after {
			if p.State != "alive" || p.PID == before[i].PID {
				err = errors.Join(err, fmt.Errorf("process %s is %s with pid %d", p.Name, p.State, p.PID))
			}
		}
		return err
	})
	return errors.Join(err, l.eventually(l.read))
}

// killPlane kills the control plane with its node agent. The driver keeps running, and the next control plane takes it
// over.
func (l *foreignLife) killPlane() error {
	before, err := l.processes(l.row.driver)
	if err != nil {
		return err
	}
	l.plane.Kill()
	whileDead := l.read()
	if l.plane, err = plane.Start(l.ctx, l.dir, l.flags...); err != nil {
		return err
	}
	err = l.eventually(func() error {
		after, err := l.processes(l.row.driver)
		for i, p := range after {
			if p.State != "alive" || p.PID != before[i].PID {
				err = errors.Join(err, fmt.Errorf("process %s is %s with pid %d, had %d",
					p.Name, p.State, p.PID, before[i].PID))
			}
		}
		return err
	})
	return errors.Join(whileDead, err, l.read())
}

func (l *foreignLife) deleteObjects() error {
	if l.inline != nil {
		return nil
	}
	claims := l.client.CoreV1().PersistentVolumeClaims("default")
	err := l.gone(func() error { return claims.Delete(l.ctx, "data", metav1.DeleteOptions{}) })
	volumes := l.client.CoreV1().PersistentVolumes()
	return errors.Join(err, l.eventually(func() error {
		list, err := volumes.List(l.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, v := range list.Items {
			err = errors.Join(err, fmt.Errorf("volume %s is %s: %s", v.Name, v.Status.Phase, v.Status.Message))
			if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
				err = errors.Join(err, volumes.Delete(l.ctx, v.Name, metav1.DeleteOptions{}))
			}
		}
		return err
	}))
}

func (l *foreignLife) remove() error {
	return l.run("volplane", "driver", "remove", l.row.driver)
}

// nothingLeft looks for objects, mounts, loop devices, processes and data.
func (l *foreignLife) nothingLeft() error {
	left, err := l.plane.Leftovers(l.ctx, l.client)
	if err != nil {
		return err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], l.host+"/") {
			left = append(left, "mount "+f[4])
		}
	}
	for _, pid := range plane.ProcessesOf(l.dir) {
		if pid != l.plane.PID() {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			left = append(left, fmt.Sprintf("process %d %q", pid, line))
		}
	}
	err = filepath.WalkDir(l.host, func(path string, d fs.DirEntry, err error) error {
		if d != nil && strings.HasPrefix(d.Name(), "life-of-volplane") && l.deletes() {
			left = append(left, "data "+path)
		}
		return err
	})
	slices.Sort(left)
	if left = slices.Compact(left); len(left) > 0 {
		return errors.Join(err, fmt.Errorf("left over: %s", strings.Join(left, "; ")))
	}
	return err
}

// deletes says whether the volume was created for the claim, and so is deleted with it.
func (l *foreignLife) deletes() bool {
	_, err := os.Stat(l.ts.MkAbs("claim.yaml"))
	return err != nil
}

// driverProcess is one process of the list of drivers.
type driverProcess struct {
	Name, State, Version string
	PID                  int
}

func (l *foreignLife) processes(driver string) ([]driverProcess, error) {
	out, err := l.output("volplane", "driver", "list", driver, "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	var list struct {
		Drivers []struct{ Processes []driverProcess }
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, err
	}
	if len(list.Drivers) != 1 || len(list.Drivers[0].Processes) == 0 {
		return nil, fmt.Errorf("there is no driver in %s", out)
	}
	return list.Drivers[0].Processes, nil
}

func (l *foreignLife) eventually(try func() error) error {
	ctx, cancel := context.WithTimeout(l.ctx, planetest.Patience)
	defer cancel()
	return testkit.Until(ctx, testkit.Error(try))
}
