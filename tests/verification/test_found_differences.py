"""That models which differ in what only some inputs show are found to differ, and equal to themselves."""

import onnx_ir as ir
import pytest

from ortfuse.verification import verify

HEAD = '<ir_version: 10, opset_import: ["": 19]>'
CONSTANTS = """<int64 nil = {0}, int64 one = {1}, float two = {2}, bool t = {1}, int64[1] one1 = {1}, int64[1] nil1 = {0},
    float k5 = {5}, float k1000 = {1000}, int64 k37 = {37}, float half = {0.5}>"""

CASES = {
    "onehot depth": (
        "int64[3] i, int64 d",
        "float[?,?] y",
        "v0=Unsqueeze(two,nil1) v1=Unsqueeze(half,nil1) v=Concat<axis=0>(v0,v1) y=OneHot(i,d,v)",
        "v0=Unsqueeze(two,nil1) v1=Unsqueeze(half,nil1) v=Concat<axis=0>(v0,v1) q=OneHot(i,d,v) s=Shape(q) l=Gather(s,one) g=Greater(l,one) f=Cast<to=1>(g) y=Add(q,f)",
    ),
    "resize sizes": (
        "float[1,1,4,4] x, int64[4] s",
        "float[?,?,?,?] y",
        "y=Resize(x,,,s)",
        "q=Resize(x,,,s) e=Size(q) c=Greater(e,k37) f=Cast<to=1>(c) y=Add(q,f)",
    ),
    "slice end": (
        "float[9] x, int64[1] e",
        "float[?] y",
        "y=Slice(x,nil1,e)",
        "q=Slice(x,nil1,e) z=Size(q) c=Greater(z,one) f=Cast<to=1>(c) y=Add(q,f)",
    ),
    "expand": (
        "float[1] x, int64[2] s",
        "float[?,?] y",
        "y=Expand(x,s)",
        "q=Expand(x,s) z=Size(q) c=Greater(z,one) f=Cast<to=1>(c) y=Add(q,f)",
    ),
    "constofshape": (
        "int64[2] s",
        "float[?,?] y",
        "y=ConstantOfShape(s)",
        "q=ConstantOfShape(s) z=Size(q) c=Greater(z,one) f=Cast<to=1>(c) y=Add(q,f)",
    ),
    "pad": (
        "float[4] x, int64[2] p",
        "float[?] y",
        "y=Pad(x,p)",
        "q=Pad(x,p,two) y=Identity(q)",
    ),
    "split": (
        "float[6] x, int64[2] s",
        "float[?] y, float[?] z",
        "y,z=Split(x,s)",
        "y,w=Split(x,s) z=Neg(w)",
    ),
    "threshold5": (
        "float[3] x",
        "float[3] y",
        "y=Clip(x,,k5)",
        "y=Identity(x)",
    ),
    "threshold1000": (
        "float[3] x",
        "float[3] y",
        "c=Greater(x,k1000) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "int eq 37": (
        "float[3] x, int64 n",
        "float[3] y",
        "c=Equal(n,k37) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "int gt 37": (
        "float[3] x, int64 n",
        "float[3] y",
        "c=Greater(n,k37) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "seq at": (
        "float[4,3] x, int64 n",
        "float[?] y",
        "s=SplitToSequence<axis=0,keepdims=0>(x) y=SequenceAt(s,n)",
        "s=SplitToSequence<axis=0,keepdims=0>(x) y=SequenceAt(s,nil)",
    ),
    "cumsum axis": (
        "float[3,4] x, int64 a",
        "float[3,4] y",
        "y=CumSum(x,a)",
        "y=CumSum(x,nil)",
    ),
    "topk big": (
        "float[16] x, int64[1] k",
        "float[?] y",
        "y,i=TopK(x,k)",
        "v,i=TopK(x,k) y=Abs(v)",
    ),
    "two bools": (
        "float[3] x, bool a, bool b",
        "float[3] y",
        "c=And(a,b) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "bool and not": (
        "float[3] x, bool a, bool b",
        "float[3] y",
        "nb=Not(b) c=And(a,nb) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "three bools": (
        "float[3] x, bool a, bool b, bool d",
        "float[3] y",
        "nb=Not(b) c0=And(a,nb) c=And(c0,d) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "uint8 extreme": (
        "uint8[4] q",
        "float[4] y",
        "y=Cast<to=1>(q)",
        "f=Cast<to=1>(q) y=Clip(f,,k5)",
    ),
    "int64 wide": (
        "int64[4] q",
        "float[4] y",
        "y=Cast<to=1>(q)",
        "f=Cast<to=6>(q) y=Cast<to=1>(f)",
    ),
    "nested loop": (
        "float[3] x, int64 n, int64 m",
        "float[3] y",
        "y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) e=Loop(m,t,h)<body=b2(int64 j,bool c2,float[3] h2)=>(bool d2,float[3] e2){d2=Identity(c2) e2=Mul(h2,two)}>}>",
        "y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) e=Loop(m,t,h)<body=b2(int64 j,bool c2,float[3] h2)=>(bool d2,float[3] e2){d2=Identity(c2) e2=Add(h2,two)}>}>",
    ),
    "loop iter 2": (
        "float[3] x, int64 n",
        "float[3] y",
        "y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) e=Mul(h,two)}>",
        "y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) g=Greater(i,one) f=Cast<to=1>(g) q=Mul(h,two) e=Add(q,f)}>",
    ),
    "loop stop": (
        "float[3] x, int64 n",
        "float[3] y",
        "y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){s=ReduceMax<keepdims=0>(h) d=Less(s,k5) e=Mul(h,two)}>",
        "y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) e=Mul(h,two)}>",
    ),
    "scan len": (
        "float[n,3] x",
        "float[n,3] y",
        "i=Sub(x,x) z=ReduceSum<keepdims=0>(i,nil1) q,y=Scan(z,x)<num_scan_inputs=1,body=b(float[3] s,float[3] e)=>(float[3] s2,float[3] o){s2=Add(s,e) o=Identity(s2)}>",
        "i=Sub(x,x) z=ReduceSum<keepdims=0>(i,nil1) q,y=Scan(z,x)<num_scan_inputs=1,body=b(float[3] s,float[3] e)=>(float[3] s2,float[3] o){s2=Identity(e) o=Identity(s2)}>",
    ),
    "float scalar loop": (
        "float[3] x, float v",
        "float[3] y",
        "n=Cast<to=7>(v) y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) e=Mul(h,two)}>",
        "n=Cast<to=7>(v) y=Loop(n,t,x)<body=b(int64 i,bool c,float[3] h)=>(bool d,float[3] e){d=Identity(c) e=Add(h,two)}>",
    ),
    "range neg": (
        "int64 a, int64 b",
        "int64[?] y",
        "y=Range(a,b,one)",
        "q=Range(a,b,one) y=Abs(q)",
    ),
    "mod neg": (
        "int64[4] a",
        "int64[4] y",
        "k=Add(nil,k37) y=Mod(a,k)",
        "k=Add(nil,k37) y=Mod<fmod=1>(a,k)",
    ),
    "div neg": (
        "int32[4] a, int32[4] b",
        "int32[4] y",
        "q=Abs(a) y=Identity(q)",
        "y=Identity(a)",
    ),
    "nan": (
        "float[4] x",
        "float[4] y",
        "c=IsNaN(x) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "inf": (
        "float[4] x",
        "float[4] y",
        "c=IsInf(x) y=Where(c,two,x)",
        "y=Identity(x)",
    ),
    "dyn sliced len": (
        "float[b,s] x, int64[b] len",
        "float[b,s] y",
        "sh=Shape(x) s1=Gather(sh,one) r=Range(nil,s1,one) l=Unsqueeze(len,one1) c=Less(r,l) y=Where(c,x,half)",
        "y=Identity(x)",
    ),
    "len off by one": (
        "float[b,s] x, int64[b] len",
        "float[b,s] y",
        "sh=Shape(x) s1=Gather(sh,one) r=Range(nil,s1,one) l=Unsqueeze(len,one1) c=Less(r,l) y=Where(c,x,half)",
        "sh=Shape(x) s1=Gather(sh,one) r=Range(nil,s1,one) l=Unsqueeze(len,one1) c=LessOrEqual(r,l) y=Where(c,x,half)",
    ),
}
"""Inputs, outputs, a body, and another body that computes something else on some inputs."""


def read(inputs: str, outputs: str, body: str) -> ir.Model:
    return ir.from_onnx_text(f"{HEAD} g ({inputs}) => ({outputs}) {CONSTANTS} {{ {body} }}")


@pytest.mark.parametrize("name", CASES)
def test_inputs_show_what_differs(name: str) -> None:
    inputs, outputs, body, other = CASES[name]
    model = read(inputs, outputs, body)
    assert verify(model, read(inputs, outputs, body)).ok
    assert not verify(model, read(inputs, outputs, other)).ok
