package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/test/internal/plane"
)

const (
	top       = "../.."
	committed = "../../charts/volplane"
	// least are the values that every release needs.
	least = "../../charts/volplane/ci/default-values.yaml"
)

// TestTheChartIsWhatIsWritten: the committed chart is the generator's.
func TestTheChartIsWhatIsWritten(t *testing.T) {
	want, err := chart(top)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	err = filepath.WalkDir(committed, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(committed, path)
		if err != nil {
			return err
		}
		got[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !bytes.Equal(got[name], want[name]) {
			t.Errorf("%s is not what the generator writes: run 'make chart'", name)
		}
		delete(got, name)
	}
	for name := range got {
		t.Errorf("the generator does not write %s: run 'make chart'", name)
	}
}

// helm runs helm, and returns what it prints.
func helm(t *testing.T, args ...string) (out, complaints string, err error) {
	t.Helper()
	var o, e strings.Builder
	cmd := exec.CommandContext(t.Context(), plane.Bin("helm"), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// rendered returns the objects that helm makes of values.
func rendered(t *testing.T, args ...string) map[string]any {
	t.Helper()
	out, complaints, err := helm(t, append([]string{
		"template", "release", committed, "--namespace=storage", "--skip-tests", "--values=" + least,
	}, args...)...)
	if err != nil {
		t.Fatalf("helm: %v\n%s", err, complaints)
	}
	return objects(t, out)
}

// objects returns objects by their kinds and names, without the chart's additions.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for document := range strings.SplitSeq(text, "---\n") {
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if len(o) == 0 {
			continue
		}
		meta := o["metadata"].(map[string]any)
		name := fmt.Sprint(o["kind"], " ", meta["namespace"], "/", meta["name"])
		if out[name] != nil {
			t.Errorf("there are two of %s", name)
		}
		out[name] = bare(o)
	}
	return out
}

// bare returns a value without empty fields and without the labels that only a chart's objects have. The order of a
// role's rules, and of their elements, does not matter.
func bare(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, label := range []string{
			"helm.sh/chart", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by",
		} {
			delete(v, label)
		}
		for key, below := range v {
			if v[key] = bare(below); empty(v[key]) && key != "emptyDir" {
				delete(v, key)
			}
			if l, is := v[key].([]any); is && slices.Contains([]string{"rules", "resourceNames", "verbs"}, key) {
				slices.SortFunc(l, func(a, b any) int { return strings.Compare(line(a), line(b)) })
			}
		}
	case []any:
		for i := range v {
			v[i] = bare(v[i])
		}
	}
	return v
}

func empty(v any) bool {
	m, isMap := v.(map[string]any)
	l, isList := v.([]any)
	return v == nil || v == "" || isMap && len(m) == 0 || isList && len(l) == 0
}

func line(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}

// printed returns the objects that volplane manifests prints.
func printed(t *testing.T, flags []string) map[string]any {
	t.Helper()
	var out, complaints bytes.Buffer
	code := cli.Main(t.Context(), append([]string{
		"manifests", "--driver=csi.example.com", "--driver-image=example.com/driver:1.0", "--namespace=storage",
		"--image=example.com/volplane:1.0", "--image-pull-policy=IfNotPresent", "--driver-image-pull-policy=IfNotPresent",
	}, flags...), cli.Streams{Out: &out, Err: &complaints}, "test",
		cli.Programs{DriverControllers: app.ClusterControllers(), Rights: app.DriverControllerRights})
	if code != 0 {
		t.Fatalf("volplane manifests: %s", &complaints)
	}
	return objects(t, out.String())
}

// TestTheChartIsTheManifests: for each file of values, helm makes the objects that volplane manifests prints with the
// flags in the file's comments.
func TestTheChartIsTheManifests(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no values: ", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var flags []string
			for l := range strings.Lines(string(text)) {
				if of, is := strings.CutPrefix(l, "# flags:"); is {
					flags = append(flags, strings.Fields(of)...)
				}
			}
			got, want := rendered(t, "--values="+file), printed(t, flags)
			for _, name := range slices.Sorted(maps.Keys(want)) {
				if line(got[name]) != line(want[name]) {
					t.Errorf("%s: the chart has\n%s\nand volplane manifests\n%s", name, line(got[name]), line(want[name]))
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("volplane manifests prints no %s", name)
			}
			if out, complaints, err := helm(t, "lint", "--strict", committed, "--values="+least, "--values="+file); err != nil {
				t.Errorf("helm lint: %v\n%s%s", err, out, complaints)
			}
		})
	}
}

// TestRefusedValues: invalid values are reported, and nothing is rendered.
func TestRefusedValues(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"controller.replica=1", "additional properties 'replica' not allowed"},
		{"driver.name=Csi.example.com", "does not match pattern"},
		{"controllers={binder}", "value must be one of"},
		{"shape=pod", "value must be one of"},
		{"metrics.port=0", "minimum"},
		{"csiDriver.podInfoOnMount=yes", "got string"},
		{"rbac.secrets={login}", "does not match pattern"},
		{"storageClasses[0].parameters.a=b", "missing property 'name'"},
		{"storageClasses[0].name=a,storageClasses[0].provisioner=b", "additional properties 'provisioner' not allowed"},
		{"storageClasses[0].name=a,storageClasses[0].reclaimpolicy=Retain", "additional properties 'reclaimpolicy'"},
		{"storageClasses[0].name=a,storageClasses[0].reclaimPolicy=Keep", "value must be one of"},
		{"storageClasses[0].name=a,storageClasses[0].parameters.tier=1", "want string"},
		{"shape=daemonset,node.enabled=false", "node.enabled must be true"},
		{"nodeDeployment=true", "needs the shape daemonset"},
		{"shape=daemonset,nodeDeployment=true,controllers={snapshot-controller}", "one for the whole cluster"},
		{"shape=daemonset,controller.nodeSelector.a=b", "must be empty"},
		{"shape=daemonset,controller.driver.args={a}", "must be empty"},
		{"shape=daemonset,node.driver.args={a}", "must be empty"},
		{"serviceAccount.create=false", "name the accounts"},
		{"prometheus.podMonitor.enabled=true", "needs metrics.enabled"},
		{"changedBlocks.enabled=true", "changedBlocks.secret and changedBlocks.caCert"},
		{
			"shape=daemonset,nodeDeployment=true,changedBlocks.enabled=true,changedBlocks.secret=a,changedBlocks.caCert=b",
			"clients know one address",
		},
		{"metrics.enabled=true,controller.extraArgs={--leader-election=false}", "must not have"},
	} {
		out, complaints, err := helm(t, "template", "release", committed, "--values="+least, "--set="+c.set)
		if err == nil || out != "" || !strings.Contains(complaints, c.want) {
			t.Errorf("%s: %v, says %q, want %q; %d bytes are rendered", c.set, err, complaints, c.want, len(out))
		}
	}
}

// TestWhatOnlyAChartHas: names, accounts and digests that are chosen, classes, definitions and monitors.
func TestWhatOnlyAChartHas(t *testing.T) {
	got := rendered(t, "--set=fullnameOverride=mine,nameOverride=app,commonLabels.team=x,serviceAccount.create=false,"+
		"serviceAccount.node=n,serviceAccount.controller=c,crds.install=true,metrics.enabled=true,"+
		"prometheus.podMonitor.enabled=true,prometheus.podMonitor.additionalLabels.release=p,"+
		"storageClasses[0].name=fast,storageClasses[0].parameters.tier=gold,"+
		"storageClasses[0].reclaimPolicy=Retain,storageClasses[0].annotations.a=b,"+
		"controller.podAnnotations.note=x,node.affinity.podAffinity.a=b,image.digest=sha256:"+strings.Repeat("0", 64))
	for name, want := range map[string][]string{
		"Deployment storage/mine-controller": {
			`"serviceAccountName":"c"`, `"team":"x"`, `"app.kubernetes.io/name":"app"`, `"annotations":{"note":"x"}`,
			`"example.com/volplane@sha256:0000`,
		},
		"DaemonSet storage/mine-node":              {`"serviceAccountName":"n"`, `"affinity":{"podAffinity":{"a":"b"}}`},
		"ClusterRoleBinding <nil>/mine-controller": {`"name":"c","namespace":"storage"`},
		"StorageClass <nil>/fast": {
			`"provisioner":"csi.example.com"`, `"parameters":{"tier":"gold"}`, `"reclaimPolicy":"Retain"`, `"annotations":{"a":"b"}`,
		},
		"PodMonitor storage/mine": {`"port":"metrics"`, `"release":"p"`, `"app.kubernetes.io/component":"controller"`},
		"CustomResourceDefinition <nil>/volumesnapshots.snapshot.storage.k8s.io": {`"helm.sh/resource-policy":"keep"`},
	} {
		for _, w := range want {
			if !strings.Contains(line(got[name]), w) {
				t.Errorf("%s lacks %s: %s", name, w, line(got[name]))
			}
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "ServiceAccount") {
			t.Errorf("%s is created", name)
		}
	}
	out, complaints, err := helm(t, "install", "release", committed, "--dry-run=client", "--values="+least)
	if err != nil || !strings.Contains(out, "kubectl why-volume pvc/test") {
		t.Errorf("the notes: %v\n%s%s", errors.Unwrap(err), out, complaints)
	}
}
