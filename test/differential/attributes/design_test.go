package attributes

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/test/internal/differential"
)

// TestModifyDiffersByDesign plays a sequence for each reason why changes of attributes may differ, and requires that
// both sides differ because of it: a reason without one would be an excuse.
func TestModifyDiffersByDesign(t *testing.T) {
	t.Parallel()
	d := modifyDifferential(t, false)
	var reasons []string
	for _, r := range modifyReasons() {
		reasons = append(reasons, r.reason)
	}
	d.Show(t, slices.Concat(modifyDesigns(), modifyCorners()), reasons)
}

// modifyCorners are sequences that are seldom drawn, and after which nothing differs.
func modifyCorners() []design {
	gold, claim := differential.NewAttributes("gold"), newModifiable("c0", "")
	refused := differential.Failing(differential.MethodModify, fault{Code: codes.Internal})
	unsure := differential.Failing(differential.MethodModify, fault{Code: codes.Unavailable})
	return []design{
		{Reason: "a class goes after a refusal", Ops: []op{gold, claim, refused, wish("c0", "gold"), dropAttributes("gold")}},
		{Reason: "a class goes while it may be given", Ops: []op{
			gold, claim, unsure, wish("c0", "gold"), dropAttributes("gold"),
		}},
		{Reason: "a claim gives up what was refused", Ops: []op{gold, claim, refused, wish("c0", "gold"), wish("c0", "")}},
		{Reason: "a claim wants its old class after a refusal", Ops: []op{
			gold, differential.NewAttributes("silver"), newModifiable("c0", "silver"), refused, wish("c0", "gold"), wish("c0",
				"silver"),
		}},
		{Reason: "a claim wants its old class, and the driver may be at work", Ops: []op{
			gold, differential.NewAttributes("silver"), newModifiable("c0", "silver"), unsure, wish("c0", "gold"), wish("c0",
				"silver"),
			differential.Heal(1),
		}},
		{Reason: "what can never be is given up", Ops: []op{
			gold, claim, differential.Failing(differential.MethodModify, fault{Code: codes.InvalidArgument}), wish("c0",
				"gold"), wish("c0", ""),
		}},
	}
}

func modifyDesigns() []design {
	gold, claim := differential.NewAttributes("gold"), newModifiable("c0", "")
	always := func(code codes.Code) op { return differential.Failing(differential.MethodModify, fault{Code: code}) }
	const mark = 1
	return []design{
		{Reason: reasonNoticed, Ops: []op{claim, wish("c0", "iron"), differential.NewAttributes("iron")}},
		{Reason: reasonStrange, Ops: []op{differential.NewAttributes("strange"), claim, wish("c0", "strange")}},
		{Reason: reasonLeaving, Ops: []op{
			gold, claim, always(codes.Internal), wish("c0", "gold"), differential.DeleteClaim("c0"), differential.Heal(mark),
		}},
		{Reason: reasonLeaving, Ops: []op{newGrowing(), claim, differential.DeleteClaim("c0"), ask("c0", "2Gi")}},
		{Reason: reasonForGood, Ops: []op{
			gold, claim, always(codes.InvalidArgument), wish("c0", "gold"), differential.Heal(mark),
		}},
	}
}
