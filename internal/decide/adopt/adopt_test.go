package adopt

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const driver = "csi.example.com"

// found returns the CSIDriver with every field set, as the driver's vendor or volplane has made it.
func found(by string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{
			Name: driver, Labels: map[string]string{volume.LabelMadeBy: by},
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "example.com/kept": "yes"},
		},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(true), PodInfoOnMount: ptr.To(true), StorageCapacity: ptr.To(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{"Persistent", "Ephemeral"},
			FSGroupPolicy:        ptr.To(storagev1.FileFSGroupPolicy),
			TokenRequests:        []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: ptr.To[int64](600)}},
			RequiresRepublish:    ptr.To(true), SELinuxMount: ptr.To(true),
			NodeAllocatableUpdatePeriodSeconds: ptr.To[int64](60), ServiceAccountTokenInSecrets: ptr.To(true),
			PreventPodSchedulingIfMissing: ptr.To(true),
		},
	}
}

// installed returns the workloads in a file of testdata.
func installed(t *testing.T, file string) []Workload {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var out []Workload
	for document := range strings.SplitSeq(string(data), "---\n") {
		var w appsv1.DaemonSet
		if err := yaml.Unmarshal([]byte(document), &w); err != nil {
			t.Fatal(err)
		}
		out = append(out, Workload{
			Kind: w.Kind, Namespace: w.Namespace, Name: w.Name, Labels: w.Labels, Annotations: w.Annotations,
			Pod: w.Spec.Template.Spec,
		})
	}
	return out
}

// registered returns the nodes n1, n2, ... on which the driver has registered, each with the value of its topology;
// without any values, the driver has none.
func registered(f *Facts, nodes int, values ...string) {
	f.NodeLabels = map[string]map[string]string{}
	for i := range nodes {
		d := storagev1.CSINodeDriver{Name: driver}
		name := fmt.Sprint("n", i+1)
		if len(values) > 0 {
			d.TopologyKeys = []string{"example.com/place"}
			f.NodeLabels[name] = map[string]string{"example.com/place": values[i]}
		}
		f.CSINodes = append(f.CSINodes, storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "other.example.com"}, d}},
		})
	}
}

func print(out *strings.Builder, name string, p Plan) {
	fmt.Fprintf(out, "%s\n", name)
	if p.Namespace+p.SocketDir+p.KubeletDir != "" {
		fmt.Fprintf(out, "  namespace %s, socket in %s, kubelet in %s\n", p.Namespace, p.SocketDir, p.KubeletDir)
	}
	fmt.Fprintf(out, "  CSIDriver printed: %t; nodes left out: %t; shape: %s; controllers: %s\n",
		p.Driver != nil, p.WithoutNodes, p.Shape, strings.Join(p.Controllers, ","))
	if len(p.ControllerArgs) > 0 {
		fmt.Fprintf(out, "  arguments: %s\n", strings.Join(p.ControllerArgs, " "))
	}
	if p.NodeDeployment {
		fmt.Fprintln(out, "  each node's volumes")
	}
	for _, n := range p.Notes {
		fmt.Fprintf(out, "  note: %s\n", n)
	}
	for _, r := range p.Refused {
		fmt.Fprintf(out, "  refused: %s\n", r)
	}
}

// TestPlans: what is kept, left out, proposed and refused.
func TestPlans(t *testing.T) {
	vendor, nameless := installed(t, "vendor.yaml"), installed(t, "nameless.yaml")
	var out strings.Builder
	for _, c := range []struct {
		name  string
		facts func(*Facts)
	}{
		{"nothing is there", func(*Facts) {}},
		{"the vendor's driver runs", func(f *Facts) { f.Found, f.Workloads = found("vendor"), vendor; registered(f, 3) }},
		{"its DaemonSet is to be replaced", func(f *Facts) {
			f.Found, f.Workloads, f.WithoutNodes = found("vendor"), vendor, ptr.To(false)
		}},
		{"a driver that its workloads do not name, of a Helm release", func(f *Facts) {
			f.Found, f.Workloads = found("Helm"), nameless
			f.Found.Annotations["meta.helm.sh/release-name"] = "nfs"
			f.Found.Annotations["meta.helm.sh/release-namespace"] = "kube-system"
		}},
		{"nobody knows whose workloads these are", func(f *Facts) { f.Found, f.Workloads = found("Helm"), nameless }},
		{"workloads in two namespaces", func(f *Facts) {
			f.Workloads = append(installed(t, "vendor.yaml"), vendor[1])
			f.Workloads[3].Namespace = "elsewhere"
		}},
		{"workloads in two namespaces, and one is named", func(f *Facts) {
			f.Workloads, f.Namespace = append(installed(t, "vendor.yaml"), vendor[1]), "storage"
			f.Workloads[3].Namespace = "elsewhere"
		}},
		{"another namespace is named", func(f *Facts) { f.Workloads, f.Namespace = vendor, "mine" }},
		{"volplane's own", func(f *Facts) {
			f.Found, f.Workloads = found("volplane"), installed(t, "ours.yaml")
			registered(f, 2, "zone-a", "zone-a")
		}},
		{"volplane's own, in another shape", func(f *Facts) {
			f.Found, f.Workloads, f.Shape = found("volplane"), installed(t, "ours.yaml"), "statefulset"
		}},
		{"volplane's own, on each node", func(f *Facts) {
			f.Workloads = installed(t, "ours.yaml")[:1]
			f.Workloads[0].Pod.Containers = append(f.Workloads[0].Pod.Containers, corev1.Container{
				Args: []string{"controller", "--controllers=provisioner,capacity"},
			})
		}},
		{"volplane's own, for each node's volumes", func(f *Facts) {
			f.Workloads = installed(t, "ours.yaml")[:1]
			f.Workloads[0].Pod.Containers = append(f.Workloads[0].Pod.Containers, corev1.Container{
				Args: []string{"controller", "--controllers=provisioner,capacity", "--provisioner-node-deployment"},
			})
		}},
		{"another field is wanted of somebody else's", func(f *Facts) {
			f.Found, f.Wanted.PodInfoOnMount = found("vendor"), ptr.To(false)
		}},
		{"the same is wanted of somebody else's", func(f *Facts) {
			f.Found, f.Wanted.PodInfoOnMount = found("vendor"), ptr.To(true)
		}},
		{"a field that never changes is wanted otherwise", func(f *Facts) {
			f.Found, f.Wanted.AttachRequired = found("volplane"), ptr.To(false)
			f.Wanted.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Persistent"}
		}},
		{"each node has its own topology", func(f *Facts) { f.Found = found("volplane"); registered(f, 2, "n1", "x") }},
		{"and a shape is asked for", func(f *Facts) { f.Shape = "deployment"; registered(f, 2, "n1", "n2") }},
		{"and controllers are asked for", func(f *Facts) { f.ChoseControllers = true; registered(f, 2, "n1", "n2") }},
		{"and the vendor runs on the nodes", func(f *Facts) { f.Workloads = vendor; registered(f, 2, "n1", "n2") }},
		{"volumes of a plugin of Kubernetes' own", func(f *Facts) { f.InTree = []string{"pv-a", "pv-b"} }},
		{"one node, with its name", func(f *Facts) { registered(f, 1, "n1") }},
		{"one node, with a zone", func(f *Facts) { registered(f, 1, "zone-a") }},
	} {
		f := Facts{Driver: driver, ManagedBy: "volplane", Controllers: []string{"provisioner", "attacher", "resizer"}}
		c.facts(&f)
		print(&out, c.name, Decide(f))
	}
	golden.Equal(t, filepath.Join("testdata", "plans.txt"), out.String())
}

// TestWork: the work of a vendor's sidecars goes on as they are told to do it, or it is said what ends.
func TestWork(t *testing.T) {
	nfs, each := installed(t, "nfs.yaml"), installed(t, "eachnode.yaml")
	var out strings.Builder
	for _, c := range []struct {
		name  string
		facts func(*Facts)
	}{
		{"csi-driver-nfs", func(f *Facts) { f.Workloads = nfs }},
		{"and some controllers are chosen", func(f *Facts) {
			f.Workloads, f.ChoseControllers, f.Controllers = nfs, true, []string{"provisioner", "modifier"}
		}},
		{"and some arguments are given", func(f *Facts) {
			f.Workloads, f.Args = nfs, []string{"--provisioner-timeout=1m", "--feature-gates=Topology=false"}
		}},
		{"and volplane does a part of it already", func(f *Facts) {
			f.Workloads = append(installed(t, "kept.yaml"), nfs...)
			f.Workloads[0].Namespace = "kube-system"
		}},
		{"volplane's own, with arguments", func(f *Facts) { f.Workloads = installed(t, "kept.yaml") }},
		{"arguments of every kind", func(f *Facts) { f.Workloads = installed(t, "everything.yaml") }},
		{"on each node", func(f *Facts) { f.Workloads = each; registered(f, 2, "n1", "n2") }},
		{"on each node, and so again", func(f *Facts) {
			f.Workloads, f.Shape, f.WithoutNodes = each, "daemonset", ptr.To(false)
		}},
		{"on each node, and centrally", func(f *Facts) {
			f.Workloads, f.Shape, f.WithoutNodes = each, "deployment", ptr.To(true)
		}},
		{"a server of changed blocks", func(f *Facts) { f.Workloads = installed(t, "blocks.yaml") }},
		{"a server of changed blocks that is replaced", func(f *Facts) {
			f.Workloads, f.ChangedBlocks = installed(t, "blocks.yaml"), true
		}},
		{"two drivers with one program", func(f *Facts) { f.Workloads = installed(t, "two.yaml"); registered(f, 1) }},
	} {
		f := Facts{Driver: driver, ManagedBy: "volplane", Controllers: []string{"provisioner", "attacher", "resizer"}}
		c.facts(&f)
		print(&out, c.name, Decide(f))
	}
	golden.Equal(t, filepath.Join("testdata", "work.txt"), out.String())
}

// TestEveryFieldIsKept: a CSIDriver of volplane's keeps what is not asked for, also fields of later versions.
func TestEveryFieldIsKept(t *testing.T) {
	is := found("volplane")
	f := Facts{Driver: driver, ManagedBy: "volplane", Found: is}
	f.Wanted.FSGroupPolicy = ptr.To(storagev1.NoneFSGroupPolicy)
	got := Decide(f).Driver
	want := is.DeepCopy()
	want.Spec.FSGroupPolicy = f.Wanted.FSGroupPolicy
	delete(want.Annotations, corev1.LastAppliedConfigAnnotation)
	if change := golden.Change(t, want, got); change != "" {
		t.Errorf("not kept:\n%s", change)
	}
	if is.Annotations[corev1.LastAppliedConfigAnnotation] == "" || *is.Spec.FSGroupPolicy != storagev1.FileFSGroupPolicy {
		t.Error("the CSIDriver that was read is changed")
	}
}
