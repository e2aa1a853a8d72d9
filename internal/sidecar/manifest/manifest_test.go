package manifest_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/internal/testkit/golden"
)

// usual are the flags that must be there.
func usual() []string {
	return []string{
		"--driver", "csi.example.com", "--driver-image", "example.com/driver:1.0", "--image", "example.com/volplane:1.0",
	}
}

// printed returns what the command prints, and what it complains of.
func printed(t *testing.T, flags ...string) (out, err string) {
	t.Helper()
	var o, e bytes.Buffer
	code := cli.Main(t.Context(), append(append([]string{"manifests"}, usual()...), flags...),
		cli.Streams{Out: &o, Err: &e}, "test",
		cli.Programs{DriverControllers: app.ClusterControllers(), Rights: app.DriverControllerRights})
	if (code == 0) != (e.Len() == 0) {
		t.Errorf("it ended with %d and says %s", code, &e)
	}
	return o.String(), e.String()
}

// TestShapes: what each shape looks like (S1-090 to S1-096).
func TestShapes(t *testing.T) {
	for shape, flags := range map[string][]string{
		"deployment": nil,
		"deployment-everything": {
			"--replicas=3", "--controllers=provisioner,capacity,attacher,resizer",
			"--secrets=storage/login,storage/key,other/login", "--kubelet-dir=/var/lib/k0s/kubelet",
			"--host-path=/dev,/run/udev", "--node-selector=role=infra", "--toleration=dedicated=storage:NoSchedule",
			"--toleration=infra", "--namespace=kube-system", "--selinux-mount",
			"--driver-args=--endpoint=$(CSI_ENDPOINT)", "--controller-args=--mode=controller", "--node-args=--mode=node",
			"--node-args=--node=$(NODE_NAME)",
		},
		"options": {
			"--namespace=storage", "--create-namespace", "--host-path=/var/lib/data:/data:DirectoryOrCreate",
			"--host-path=/etc/driver:DirectoryOrCreate", "--host-path=/lib/modules:/modules",
			"--socket-dir=/var/lib/kubelet/plugins/d",
			"--env=A=b=c", "--controller-env=KEY@secret/login/key", "--node-env=MODE@configmap/settings/mode",
			"--volume=/etc/login=secret/login", "--controller-volume=/etc/settings=configmap/settings",
			"--controller-volume=/tmp=emptydir/memory", "--node-volume=/cache=emptydir",
			"--image-pull-policy=Always", "--driver-image-pull-policy=Never", "--image-pull-secret=registry",
			"--controller-health-port=0", "--node-health-port=19809", "--host-network", "--max-unavailable=10%",
			"--metrics-port=8080", "--controllers-args=--kube-api-qps=50", "--spread=false", "--disruption-budget=false",
			"--requests=node-driver:cpu=50m,memory=100Mi", "--limits=controllers:memory=1Gi",
			"--attach-required=false", "--pod-info-on-mount", "--volume-lifecycle-modes=Persistent,Ephemeral",
			"--storage-capacity", "--fs-group-policy=File", "--token-request=", "--token-request=vault=10m",
			"--requires-republish", "--selinux-mount=false", "--node-allocatable-update-period=1m",
			"--service-account-token-in-secrets", "--prevent-pod-scheduling-if-missing",
		},
		"beside":      {"--without-csidriver", "--without-nodes", "--max-unavailable=0"},
		"statefulset": {"--shape=statefulset", "--controllers=provisioner", "--secrets=*", "--metrics-port=8080"},
		"daemonset":   {"--shape=daemonset"},
		"changed-blocks": {
			"--changed-blocks-secret=blocks-tls", "--changed-blocks-ca=testdata/authority.pem", "--controllers=provisioner",
			"--secrets=storage/login",
		},
	} {
		t.Run(shape, func(t *testing.T) {
			out, _ := printed(t, flags...)
			golden.Equal(t, filepath.Join("testdata", shape+".yaml"), out)
		})
	}
}

// TestRefusals: what cannot be meant is said, and nothing printed.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--driver=Csi.example.com"}, "small characters"},
		{[]string{"--driver=" + strings.Repeat("a", 64)}, "at most 63"},
		{[]string{"--namespace=a.b"}, "is not a name of a namespace"},
		{[]string{"--image="}, "image with volplane"},
		{[]string{"--driver-image="}, "driver's image"},
		{[]string{"--shape=pod"}, "deployment, statefulset, daemonset"},
		{[]string{"--replicas=-1"}, "must be a replica"},
		{[]string{"--shape=statefulset", "--replicas=2"}, "need a leader"},
		{[]string{"--shape=daemonset", "--node-selector=a=b"}, "runs on every node"},
		{[]string{"--shape=daemonset", "--toleration=a"}, "runs on every node"},
		{[]string{"--shape=daemonset", "--node-args=a"}, "one container of the driver"},
		{[]string{"--changed-blocks-secret=a"}, "belong together"},
		{[]string{"--changed-blocks-ca=testdata/authority.pem"}, "belong together"},
		{[]string{"--changed-blocks-secret=a", "--changed-blocks-ca=testdata/flex.yaml"}, "no certificate in PEM"},
		{[]string{"--changed-blocks-secret=a/b", "--changed-blocks-ca=testdata/authority.pem"}, "needs the Secret"},
		{
			[]string{
				"--shape=daemonset", "--node-deployment", "--changed-blocks-secret=a",
				"--changed-blocks-ca=testdata/authority.pem",
			}, "clients know one address",
		},
		{[]string{"--kubelet-dir=kubelet"}, "not an absolute path"},
		{[]string{"--host-path=/dev/"}, "not an absolute path"},
		{[]string{"--host-path=/dev:/a:/b"}, "use HOST[:CONTAINER][:TYPE]"},
		{[]string{"--host-path=/dev:Socket"}, "use HOST[:CONTAINER][:TYPE]"},
		{[]string{"--host-path=/a", "--host-path=/b:/a"}, "two volumes are mounted at /a"},
		{[]string{"--host-path=/a:/csi"}, "two volumes are mounted at /csi"},
		{[]string{"--volume=/a=secret"}, "use PATH=secret/NAME"},
		{[]string{"--volume=a=secret/b"}, "not an absolute path"},
		{[]string{"--node-env=1A=b"}, "use NAME=VALUE"},
		{[]string{"--env=A@secret/b"}, "use NAME=VALUE"},
		{[]string{"--env=A@pod/b/c"}, "use NAME=VALUE"},
		{[]string{"--socket-dir=plugins"}, "not an absolute path"},
		{[]string{"--image-pull-policy=Sometimes"}, "IfNotPresent, Always, Never"},
		{[]string{"--max-unavailable=some"}, "a number or a share"},
		{[]string{"--requests=driver:cpu=1"}, "the containers are"},
		{[]string{"--limits=registrar:cpu=much"}, "use CONTAINER:cpu=10m"},
		{[]string{"--fs-group-policy=Some"}, "ReadWriteOnceWithFSType, File, None"},
		{[]string{"--volume-lifecycle-modes=Persistent,Long"}, "Persistent, Ephemeral"},
		{[]string{"--token-request=a=1s"}, "at least 10s"},
		{[]string{"--pod-info-on-mount=perhaps"}, "invalid syntax"},
		{[]string{"--namespace=kube-system", "--create-namespace"}, "not the driver's alone"},
		{[]string{"--shape=daemonset", "--controller-env=A=b"}, "one container of the driver"},
		{[]string{"--shape=daemonset", "--without-nodes"}, "cannot be left out"},
		{[]string{"--controllers=binder"}, "use provisioner"},
		{[]string{"--controllers="}, "--controllers is empty"},
		{[]string{"--toleration=a:Never"}, "with the effect"},
		{[]string{"--secrets=login"}, "use NAMESPACE/NAME"},
		{[]string{"--secrets=*,a/b"}, "or * alone"},
		{[]string{"--metrics-port=80", "--controllers-args=--leader-election=false"}, "the kubelet probes"},
		{[]string{"--metrics-port=80", "--controllers-args=--http-endpoint=:81"}, "the kubelet probes"},
	} {
		if out, err := printed(t, c.flags...); out != "" || !strings.Contains(err, c.want) {
			t.Errorf("%v: says %q, want %q; printed %d bytes", c.flags, err, c.want, len(out))
		}
	}
}

// TestEachFieldHasAFlag: the golden file "options" sets every field of a CSIDriver, also those that a later version of
// Kubernetes adds.
func TestEachFieldHasAFlag(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "options.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(data), "---\n") {
		var d storagev1.CSIDriver
		if err := yaml.Unmarshal([]byte(document), &d); err != nil || d.Kind != "CSIDriver" {
			continue
		}
		spec := reflect.ValueOf(d.Spec)
		for i := range spec.NumField() {
			if spec.Field(i).IsZero() {
				t.Errorf("no flag sets %s", spec.Type().Field(i).Name)
			}
		}
		return
	}
	t.Error("there is no CSIDriver")
}

// TestBase: names of objects are short enough for every kind, and two drivers'
// differ.
func TestBase(t *testing.T) {
	long := strings.Repeat("long-name.", 6)
	for _, c := range []struct{ driver, want string }{
		{"csi.example.com", "csi-example-com"},
		{long + "a", "long-name-long-name-long-name-l-efdf1cfd"},
		{long + "b", "long-name-long-name-long-name-l-4ad5e8e0"},
	} {
		if got := manifest.Base(c.driver); got != c.want || len(got) > 40 {
			t.Errorf("%s is called %s, want %s", c.driver, got, c.want)
		}
	}
}

// grants returns everything that roles give, one line for each verb.
func grants(roles map[string][]rbacv1.PolicyRule) map[string]bool {
	out := map[string]bool{}
	for namespace, rules := range roles {
		for _, r := range rules {
			for _, verb := range r.Verbs {
				out[fmt.Sprint(namespace, "|", r.APIGroups, r.Resources, r.ResourceNames, verb)] = true
			}
		}
	}
	return out
}

// rolesOf returns the rules in manifests by namespace.
func rolesOf(t *testing.T, text string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	out := map[string][]rbacv1.PolicyRule{}
	for document := range strings.SplitSeq(text, "---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if role.Kind == "ClusterRole" || role.Kind == "Role" {
			out[role.Namespace] = append(out[role.Namespace], role.Rules...)
		}
	}
	return out
}

// guarded returns what the clients of these controllers let pass, but Secrets
// and what is kept in a namespace.
func guarded(controllers []string) map[string]bool {
	out := map[string]bool{}
	for _, d := range app.Declarations() {
		if !slices.Contains(controllers, d.Name) {
			continue
		}
		for _, a := range d.Rights() {
			for _, verb := range a.Verbs {
				if a.Resource != "secrets" && a.Namespace == "" {
					out[line(a, verb)] = true
				}
			}
		}
	}
	return out
}

func line(a kube.Access, verb string) string {
	return fmt.Sprint(a.Namespace, "|", []string{a.Group}, []string{a.Resource}, a.Names, verb)
}

// intents returns what the log of a driver's provisioner takes: of the Leases
// of the driver's own namespace only its own are written.
func intents(base string) []string {
	var names, out []string
	for n := range 16 {
		names = append(names, fmt.Sprintf("volplane-intents-%s-%d", base, n+1))
	}
	for _, verb := range []string{"create", "list"} {
		out = append(out, line(kube.Access{Namespace: base, Group: "coordination.k8s.io", Resource: "leases"}, verb))
	}
	for _, verb := range []string{"update", "delete"} {
		out = append(out, line(
			kube.Access{Namespace: base, Group: "coordination.k8s.io", Resource: "leases", Names: names}, verb,
		))
	}
	return out
}

// TestRolesAreTheDeclarations: the manifests grant what the clients of the
// controllers let pass, the log of a provisioner, leases where several elect a
// leader, and Secrets that were requested; nothing more, and nothing less (S1-119,
// S3-030).
func TestRolesAreTheDeclarations(t *testing.T) {
	leases := func(names ...string) []string {
		var out []string
		for _, verb := range []string{"create", "watch"} {
			out = append(out, line(
				kube.Access{Namespace: "csi-example-com", Group: "coordination.k8s.io", Resource: "leases"}, verb,
			))
		}
		for _, verb := range []string{"get", "update"} {
			out = append(out, line(
				kube.Access{Namespace: "csi-example-com", Group: "coordination.k8s.io", Resource: "leases", Names: names}, verb,
			))
		}
		return out
	}
	secret := func(namespace string, names ...string) string {
		return line(kube.Access{Namespace: namespace, Resource: "secrets", Names: names}, "get")
	}
	for _, c := range []struct {
		shape, controllers, secrets string
		more                        []string
	}{
		{"deployment", "provisioner,attacher,resizer", "", leases("csi-example-com",
			"external-attacher-leader-csi-example-com", "external-resizer-csi-example-com")},
		{"deployment", "attacher", "*", append(leases("external-attacher-leader-csi-example-com"), secret(""))},
		{"statefulset", "attacher", "a/x,b/y,a/z", []string{secret("a", "x", "z"), secret("b", "y")}},
		{"statefulset", "provisioner,capacity,attacher,resizer", "", nil},
		{"statefulset", "provisioner", "a/x,a/y", []string{secret("a", "x", "y")}},
		{"statefulset", "resizer", "", nil},
		{"daemonset", "provisioner,capacity", "", leases("csi-example-com")},
	} {
		text, _ := printed(t, "--shape="+c.shape, "--controllers="+c.controllers, "--secrets="+c.secrets)
		roles, want := rolesOf(t, text), guarded(strings.Split(c.controllers, ","))
		if strings.Contains(c.controllers, "provisioner") {
			c.more = append(c.more, intents("csi-example-com")...)
		}
		// Each process looks whether others call the driver.
		c.more = append(c.more, line(kube.Access{Group: "coordination.k8s.io", Resource: "leases"}, "list"))
		for _, l := range c.more {
			want[l] = true
		}
		got := grants(roles)
		for l := range want {
			if !got[l] {
				t.Errorf("%s of %s is not granted: %s", c.shape, c.controllers, l)
			}
		}
		for l := range got {
			if !want[l] {
				t.Errorf("%s of %s is granted for nothing: %s", c.shape, c.controllers, l)
			}
		}
		for _, r := range needless(roles, want) {
			t.Errorf("%s of %s does without %v", c.shape, c.controllers, r)
		}
	}
}

// needless returns the rules without which everything that is wanted is still granted: two rules give the same.
func needless(roles map[string][]rbacv1.PolicyRule, want map[string]bool) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for namespace, rules := range roles {
		for i := range rules {
			less := maps.Clone(roles)
			less[namespace] = slices.Delete(slices.Clone(rules), i, i+1)
			if maps.Equal(grants(less), want) {
				out = append(out, rules[i])
			}
		}
	}
	return out
}
