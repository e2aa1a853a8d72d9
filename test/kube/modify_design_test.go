package kube

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
)

// TestModifyDiffersByDesign plays a sequence for each reason for which changes of attributes may differ, and wants
// both sides to differ for it: a reason without one would be an excuse.
func TestModifyDiffersByDesign(t *testing.T) {
	t.Parallel()
	d := modifyDifferential(t, false)
	var reasons []string
	for _, r := range modifyReasons() {
		reasons = append(reasons, r.reason)
	}
	d.show(t, slices.Concat(modifyDesigns(), modifyCorners()), reasons)
}

// modifyCorners are sequences that are seldom drawn, and after which nothing differs.
func modifyCorners() []design {
	gold, claim := newAttributes("gold"), newModifiable("c0", "")
	refused := failing(methodModify, fault{code: codes.Internal})
	unsure := failing(methodModify, fault{code: codes.Unavailable})
	return []design{
		{"a class goes after a refusal", []op{gold, claim, refused, wish("c0", "gold"), dropAttributes("gold")}},
		{"a class goes while it may be given", []op{gold, claim, unsure, wish("c0", "gold"), dropAttributes("gold")}},
		{"a claim gives up what was refused", []op{gold, claim, refused, wish("c0", "gold"), wish("c0", "")}},
		{"a claim wants its old class after a refusal", []op{
			gold, newAttributes("silver"), newModifiable("c0", "silver"), refused, wish("c0", "gold"), wish("c0", "silver"),
		}},
		{"a claim wants its old class, and the driver may be at work", []op{
			gold, newAttributes("silver"), newModifiable("c0", "silver"), unsure, wish("c0", "gold"), wish("c0", "silver"),
			heal(1),
		}},
		{"what can never be is given up", []op{
			gold, claim, failing(methodModify, fault{code: codes.InvalidArgument}), wish("c0", "gold"), wish("c0", ""),
		}},
	}
}

func modifyDesigns() []design {
	gold, claim := newAttributes("gold"), newModifiable("c0", "")
	always := func(code codes.Code) op { return failing(methodModify, fault{code: code}) }
	const mark = 1
	return []design{
		{reasonNoticed, []op{claim, wish("c0", "iron"), newAttributes("iron")}},
		{reasonStrange, []op{newAttributes("strange"), claim, wish("c0", "strange")}},
		{reasonLeaving, []op{
			gold, claim, always(codes.Internal), wish("c0", "gold"), deleteClaim("c0"), heal(mark),
		}},
		{reasonLeaving, []op{newGrowing(), claim, deleteClaim("c0"), ask("c0", "2Gi")}},
		{reasonForGood, []op{gold, claim, always(codes.InvalidArgument), wish("c0", "gold"), heal(mark)}},
	}
}
