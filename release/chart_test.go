package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// checkChart requires that helm accepts the archive of the chart, which refers to the release's image.
func checkChart(t *testing.T, r *release) {
	helm := filepath.Join(r.root, "bin", "helm")
	archive := only(t, r, "volplane-*.tgz")
	values := filepath.Join(r.root, "charts/volplane/ci/default-values.yaml")
	shell(t, helm, "lint", "--strict", "--values", values, archive)
	if out := shell(t, helm, "show", "chart", archive); !strings.Contains(out, "\nversion: 0.1.0-rc.1\n") {
		t.Errorf("the chart is\n%s", out)
	}
	out := shell(t, helm, "template", "release", archive, "--values", values, "--set", "image.tag=")
	if !strings.Contains(out, `/volplane:`+r.tag()+`"`) {
		t.Errorf("the image of the release is not in\n%s", out)
	}
}

// TestChartVersion: every output of git describe gives a semantic version.
func TestChartVersion(t *testing.T) {
	for described, want := range map[string]string{
		"v0.1.0": "0.1.0", "v0.1.0-rc.1": "0.1.0-rc.1", "v0.1.0-3-gabcdef0-dirty": "0.1.0-3-gabcdef0-dirty",
		"59844836f": "0.0.0-git.59844836f", "v1.0.0+a_b": "1.0.0+a-b",
	} {
		if got := chartVersion(described); got != want {
			t.Errorf("%s is %s, want %s", described, got, want)
		}
	}
}

// checkLicenses requires the licences of the modules of all programs, in all results with programs.
func checkLicenses(t *testing.T, r *release) {
	for _, want := range []string{
		"k8s.io/kubernetes v", "k8s.io/client-go v", "google.golang.org/grpc v", "github.com/inconshreveable/mousetrap v",
	} {
		if !strings.Contains(r.licenses, "\n"+want) {
			t.Errorf("there is no licence of %s", want)
		}
	}
	for pattern, at := range map[string]string{
		"volplane-*-linux-*.tar.gz":             "/share/doc/volplane/" + thirdParty,
		"kubectl-why_volume-*-windows-*.tar.gz": thirdParty,
	} {
		var names []string
		for name := range entries(t, only(t, r, pattern)) {
			names = append(names, name)
		}
		if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, at) }) {
			t.Errorf("%s has no %s", pattern, at)
		}
	}
	for pattern, list := range map[string][]string{"*.deb": {"dpkg-deb", "--contents"}, "*.rpm": {"rpm", "-qlp"}} {
		if out := shell(t, list[0], append(list[1:], only(t, r, pattern))...); !strings.Contains(out, thirdParty+".gz\n") {
			t.Errorf("%s has no %s", pattern, thirdParty)
		}
	}
	image := filepath.Join(t.TempDir(), "image")
	shell(t, "skopeo", "--insecure-policy", "copy", "--quiet",
		"docker-archive:"+only(t, r, "volplane-v*.docker.tar")+":"+r.repository+"/"+volplane+":"+r.tag(), "dir:"+image)
	layers := shell(t, "sh", "-c", `for f in "$1"/*; do tar -tf "$f" 2>/dev/null || true; done`, "sh", image)
	for _, name := range []string{"LICENSE", thirdParty} {
		if !strings.Contains(layers, "licenses/volplane/"+name+"\n") {
			t.Errorf("the image has no %s:\n%s", name, layers)
		}
	}
}
