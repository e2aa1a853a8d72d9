package csi_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
)

// saying returns what a condition in a message says.
func saying(m proto.Message) string {
	problems, told := csi.ConditionOf(m)
	if !told {
		return "nothing"
	}
	text := "well"
	for _, p := range problems {
		text = fmt.Sprintf("%s %s %q", p.GetStatus(), p.GetReason(), p.GetMessage())
	}
	return text
}

// TestConditions: the condition of each message that had one up to CSI 1.12 can still be read. A message without it
// says nothing, which does not mean that the volume is healthy.
func TestConditions(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`{}`, "nothing"},
		{`{"volume_condition":{}}`, "well"},
		{`{"volume_condition":{"abnormal":false,"message":"all is well"}}`, "well"},
		{`{"volume_condition":{"abnormal":true}}`, `DEGRADED VolumeConditionAbnormal ""`},
		{
			`{"volume_condition":{"abnormal":true,"message":"one path is left"}}`,
			`DEGRADED VolumeConditionAbnormal "one path is left"`,
		},
		{
			`{"volume_condition":{"abnormal":true,"message":"` + strings.Repeat("x", 5000) + `"}}`,
			`DEGRADED VolumeConditionAbnormal "(a message of 5000 bytes)"`,
		},
	} {
		stats := &csipb.NodeGetVolumeStatsResponse{}
		volume := &csipb.ControllerGetVolumeResponse{}
		list := &csipb.ListVolumesResponse{}
		for m, text := range map[proto.Message]string{
			stats: c.text, volume: `{"status":` + c.text + `}`, list: `{"entries":[{"status":` + c.text + `}]}`,
		} {
			if err := csitest.Older(m, text); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range []proto.Message{stats, volume.GetStatus(), list.GetEntries()[0].GetStatus()} {
			if got := saying(m); got != c.want {
				t.Errorf("%T %s says %s, want %s", m, c.text, got, c.want)
			}
		}
	}
	if got := saying((*csipb.ListVolumesResponse_Entry)(nil).GetStatus()); got != "nothing" {
		t.Errorf("an entry without a status says %s", got)
	}
}

// TestConditionsOfAnotherDriver: what csi-driver-host-path 1.17.0, which is built with CSI 1.11, answered about a
// volume and, when its directory had been removed, about the same again.
func TestConditionsOfAnotherDriver(t *testing.T) {
	const (
		entry = "0a2a08808040122433633534633831302d656433392d313166312d383662362d356535663833376538313534"
		gone  = "12330a00122f0801122b" +
			"54686520736f757263652070617468206f662074686520766f6c756d6520646f65736e2774206578697374"
		lost  = `DEGRADED VolumeConditionAbnormal "The source path of the volume doesn't exist"`
		stats = "0a160880c0c7837d1080a0e7f1ef071880c0f5a3ef0120010a1008fbb4d40710808080081885cb2b2002"
	)
	for _, c := range []struct {
		wire string
		into proto.Message
		want string
	}{
		{entry + "12040a001200", &csipb.ControllerGetVolumeResponse{}, "well"},
		{entry + gone, &csipb.ControllerGetVolumeResponse{}, lost},
		{"0a32" + entry + "12040a001200", &csipb.ListVolumesResponse{}, "well"},
		{"0a61" + entry + gone, &csipb.ListVolumesResponse{}, lost},
		{
			stats + "121c0801121854686520766f6c756d652069736e2774206d6f756e746564", &csipb.NodeGetVolumeStatsResponse{},
			`DEGRADED VolumeConditionAbnormal "The volume isn't mounted"`,
		},
	} {
		wire, err := hex.DecodeString(c.wire)
		if err == nil {
			err = proto.Unmarshal(wire, c.into)
		}
		if err != nil {
			t.Fatal(err)
		}
		said := c.into
		switch m := c.into.(type) {
		case *csipb.ControllerGetVolumeResponse:
			said = m.GetStatus()
		case *csipb.ListVolumesResponse:
			said = m.GetEntries()[0].GetStatus()
		}
		if got := saying(said); got != c.want {
			t.Errorf("%T says %s, want %s", c.into, got, c.want)
		}
	}
}

// TestUnreadableConditions say nothing, and the last value of a field counts.
func TestUnreadableConditions(t *testing.T) {
	abnormal := []byte{1<<3 | byte(protowire.VarintType), 1}
	for name, c := range map[string]struct {
		wire []byte
		want string
	}{
		"no message": {protowire.AppendVarint([]byte{2 << 3}, 7), "nothing"},
		"cut off":    {protowire.AppendBytes([]byte{2<<3 | 2}, []byte{2<<3 | 2, 9, 'x'}), "nothing"},
		"no tag":     {protowire.AppendBytes([]byte{2<<3 | 2}, []byte{0xff}), "nothing"},
		"an abnormal of another kind": {
			protowire.AppendBytes([]byte{2<<3 | 2}, protowire.AppendFixed64([]byte{1<<3 | 1}, 1)), "well",
		},
		"more fields": {
			protowire.AppendBytes([]byte{2<<3 | 2}, append([]byte{9 << 3, 1}, abnormal...)),
			`DEGRADED VolumeConditionAbnormal ""`,
		},
		"two, of which the second says less": {
			append(protowire.AppendBytes([]byte{2<<3 | 2}, abnormal), 2<<3|2, 0), `DEGRADED VolumeConditionAbnormal ""`,
		},
		"two values": {
			protowire.AppendBytes([]byte{2<<3 | 2}, append([]byte{1 << 3, 0}, abnormal...)),
			`DEGRADED VolumeConditionAbnormal ""`,
		},
	} {
		m := &csipb.NodeGetVolumeStatsResponse{}
		if err := proto.Unmarshal(c.wire, m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := saying(m); got != c.want {
			t.Errorf("%s says %s, want %s", name, got, c.want)
		}
	}
}

// TestSecretsInConditions: no condition shows a secret that its driver has received.
func TestSecretsInConditions(t *testing.T) {
	const secret = "correct-horse-battery"
	const quoting = `{"volume_condition":{"abnormal":true,"message":"key=` + secret + `"}}`
	config := csitest.Full()
	config.Controller.VolumeCondition, config.Node.VolumeCondition = true, true
	d := csitest.Start(t, config)
	c := dial(t, d)
	if !c.Controller.VolumeCondition || !c.Node.VolumeCondition {
		t.Errorf("the capability is not known: %+v, %+v", c.Controller, c.Node)
	}
	stats, volume := &csipb.NodeGetVolumeStatsResponse{}, &csipb.ControllerGetVolumeResponse{}
	for m, text := range map[proto.Message]string{
		stats: quoting, volume: `{"volume":{"volume_id":"v"},"status":` + quoting + `}`,
	} {
		if err := csitest.Older(m, text); err != nil {
			t.Fatal(err)
		}
	}
	answer := func(method string, m any) {
		d.OnCall(method, func(int, any) csitest.Action { return csitest.Action{Answer: m} })
	}
	answer("NodeStageVolume", &csipb.NodeStageVolumeResponse{})
	answer("NodeGetVolumeStats", stats)
	answer("ControllerGetVolume", volume)
	if _, err := c.NodeClient().NodeStageVolume(t.Context(), &csipb.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/s", Secrets: map[string]string{"key": secret},
	}); err != nil {
		t.Fatal(err)
	}
	s, err := c.NodeClient().NodeGetVolumeStats(t.Context(), &csipb.NodeGetVolumeStatsRequest{VolumeId: "v"})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.ControllerClient().ControllerGetVolume(t.Context(), &csipb.ControllerGetVolumeRequest{VolumeId: "v"})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []proto.Message{s, v.GetStatus()} {
		if got := saying(m); got != `DEGRADED VolumeConditionAbnormal "key=***"` {
			t.Errorf("%T says %s", m, got)
		}
	}
}
