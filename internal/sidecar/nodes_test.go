package sidecar_test

import (
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/sidecar"
)

// TestSeveralOfANode: each program of a process has its own flags, and those that are for all.
func TestSeveralOfANode(t *testing.T) {
	nodes, without, err := sidecar.ParseNode("node", strings.Fields("--controllers=node-driver-registrar,livenessprobe "+
		"--csi-address /csi/csi.sock --livenessprobe-http-endpoint=:1 --node-driver-registrar-http-endpoint :2 "+
		"-livenessprobe-csi-address /other --node-driver-registrar-kubelet-registration-path=/k --logtostderr"), nil)
	if err != nil || len(nodes) != 2 {
		t.Fatal(nodes, err)
	}
	r, l := nodes[0].Registrar, nodes[1].Liveness
	got := fmt.Sprint(r.Socket, r.Health, r.Endpoint, r.Dir, " ", l.Socket, l.Address, " ", without)
	want := "/csi/csi.sock:2/k/registration /other:1 [--logtostderr (the log is written to standard error)]"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestAddressesOfANode: two programs of a process cannot listen at one address.
func TestAddressesOfANode(t *testing.T) {
	const both = "--controllers=node-driver-registrar,livenessprobe "
	const refused = "csi-node-driver-registrar and livenessprobe cannot both listen at :9808: give each an address of " +
		"its own, such as --node-driver-registrar-http-endpoint=:9809 and --livenessprobe-http-endpoint=:9808"
	for args, want := range map[string]string{
		both + "--http-endpoint=:9808":                       refused,
		both + "--node-driver-registrar-http-endpoint=:9808": refused,
		both + "--http-endpoint=127.0.0.1:0":                 "",
		both + "--node-driver-registrar-http-endpoint=:9809": "",
		both: "",
		both + "--node-driver-registrar-http-endpoint=:9809 --livenessprobe-http-endpoint=:9808": "",
		both + "--node-driver-registrar-health-port=9807 --livenessprobe-metrics-address=:9807": strings.ReplaceAll(refused,
			"at :9808", "at :9807"),
		"--controllers=livenessprobe --http-endpoint=:9808": "",
	} {
		_, _, err := sidecar.ParseNode("node", strings.Fields(args+" --node-driver-registrar-kubelet-registration-path=/k"),
			func(string) string { return "" })
		if got := fmt.Sprint(err); got != want && (err != nil || want != "") {
			t.Errorf("%s: %v", args, err)
		}
	}
}
