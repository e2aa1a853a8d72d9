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
	want := "/csi/csi.sock:2/k/registration /other:1 [--logtostderr (the log goes to the standard error)]"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
